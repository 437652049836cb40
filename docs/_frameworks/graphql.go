package frameworks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/extension"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// Operations returns a limiter of each user's complexity per minute.
func Operations(store weir.Store, user weir.KeyFunc) (*weir.Limiter, error) {
	return weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "graphql", Key: user, Unit: "complexity", Cost: Complexity, Settle: weir.ChargeUsed,
		Limits: []weir.Limit{algorithms.GCRA(1000, time.Minute)},
	}}})
}

// Complexity is the Cost of a rule for operations: the complexity that the extension ComplexityLimit
// of gqlgen has computed, but at least 1. Without this extension, all operations are refused.
func Complexity(r *http.Request) int64 {
	stats := extension.GetComplexityStats(r.Context())
	if stats == nil {
		return -1
	}
	return int64(max(1, stats.Complexity))
}

// An exchange is the HTTP request that carries an operation, and its response.
type exchange struct {
	w http.ResponseWriter
	r *http.Request
}

type exchangeKey struct{}

// GraphQL returns a handler that charges each operation before the server executes it. It adds a
// middleware to the server, so call it once.
func GraphQL(operations *weir.Limiter, server *handler.Server) http.Handler {
	server.AroundOperations(func(ctx context.Context, next graphql.OperationHandler) graphql.ResponseHandler {
		call := ctx.Value(exchangeKey{}).(exchange)
		a, err := operations.Admit(call.r.WithContext(ctx))
		if err != nil {
			return graphql.OneShot(&graphql.Response{Errors: gqlerror.List{refusal(call, err)}})
		}
		a.WriteHeaders(call.header())
		context.AfterFunc(ctx, func() { a.Done(weir.Outcome{}) }) // if next panics, or nobody reads a stream to its end
		responses := next(a.Context())
		return func(ctx context.Context) (res *graphql.Response) {
			panicked := true
			defer func() {
				if last(ctx, res) { // also of a panic, whose res is nil
					a.Done(weir.Outcome{Panicked: panicked})
				}
			}()
			res, panicked = responses(ctx), false
			return res
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, exchange{w, r})))
	})
}

// last reports whether no response of the operation follows. Subscriptions end with nil, and queries
// with @defer say whether there is more.
func last(ctx context.Context, res *graphql.Response) bool {
	if graphql.GetOperationContext(ctx).Operation.Operation == ast.Subscription {
		return res == nil
	}
	return res == nil || res.HasNext == nil || !*res.HasNext
}

// header returns the response header. A WebSocket has none, and its operations run at the same time.
func (e exchange) header() http.Header {
	if e.r.Header.Get("Upgrade") != "" {
		return http.Header{}
	}
	return e.w.Header()
}

// refusal returns the error of a refused operation, and writes the status and the header fields. As
// the draft of GraphQL over HTTP says, a response in application/json has the status 200.
func refusal(call exchange, err error) *gqlerror.Error {
	h, res := call.header(), gqlerror.Errorf("this operation is refused")
	var refused *weir.RefusedError
	if !errors.As(err, &refused) { // the client has hung up while it waited
		return res
	}
	a := refused.Admission
	a.WriteHeaders(h)
	h.Set("Cache-Control", "no-store")
	res.Extensions = map[string]any{"code": "RATE_LIMITED", "reason": a.Refusal.Reason.String()}
	if seconds, err := strconv.Atoi(h.Get("Retry-After")); err == nil {
		res.Message = fmt.Sprintf("too many operations, try again in %d seconds", seconds)
		res.Extensions["retryAfter"] = seconds
	}
	if h.Get("Content-Type") == "application/graphql-response+json" {
		call.w.WriteHeader(a.Refusal.Status)
	}
	return res
}
