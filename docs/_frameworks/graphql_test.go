package frameworks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/extension"
	"github.com/99designs/gqlgen/graphql/handler/transport"
	genqlient "github.com/Khan/genqlient/graphql"
	gorilla "github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// library is a schema as gqlgen generates one, whose books cost 1 unit, and 1 for each field of each
// book. A query named few reports that it has used 1 unit. Those named early and late panic.
// A subscription ends when its client ends it.
func library() graphql.ExecutableSchema {
	schema := gqlparser.MustLoadSchema(&ast.Source{Input: `
		type Query { books(first: Int!): [Book!]! }
		type Book { title: String! author: String! }
		type Subscription { loans: Int! }`})
	return &graphql.ExecutableSchemaMock{
		SchemaFunc: func() *ast.Schema { return schema },
		ComplexityFunc: func(_ context.Context, _, field string, child int, args map[string]any) (int, bool) {
			first, _ := args["first"].(int64)
			return 1 + child*int(first), field == "books"
		},
		ExecFunc: func(ctx context.Context) graphql.ResponseHandler {
			op := graphql.GetOperationContext(ctx)
			switch op.OperationName {
			case "few":
				weir.ReportUsage(ctx, "complexity", 1)
			case "early":
				panic("x")
			case "late":
				return func(context.Context) *graphql.Response { panic("x") }
			}
			first := graphql.OneShot(&graphql.Response{Data: json.RawMessage(`{"served":true}`)})
			return func(ctx context.Context) *graphql.Response {
				res := first(ctx)
				if res == nil && op.Operation.Operation == ast.Subscription {
					<-ctx.Done()
				}
				return res
			}
		},
	}
}

var (
	complexity = algorithms.FixedWindow(20, 1000*time.Hour)
	running    = algorithms.InFlight(1, time.Hour)
)

// settle refunds what panics have cost.
func settle(o weir.Outcome) int64 {
	if o.Panicked {
		return 0
	}
	return weir.ChargeUsed(o)
}

func newGraphQL(t *testing.T, store weir.Store, extensions ...graphql.HandlerExtension) http.Handler {
	t.Helper()
	server := handler.New(library())
	server.SetRecoverFunc(func(context.Context, any) error { return errors.New("internal system error") })
	server.AddTransport(transport.Websocket{})
	server.AddTransport(transport.POST{})
	for _, e := range extensions {
		server.Use(e)
	}
	return GraphQL(newLimiter(t, store,
		weir.Rule{Name: "graphql", Key: weir.ByHeader("X-User"), Unit: "complexity", Cost: Complexity, Settle: settle, Limits: []weir.Limit{complexity}},
		weir.Rule{Name: "busy", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{running}}), server)
}

func left(t *testing.T, store weir.Store, rule, key string, limit weir.Limit) int64 {
	t.Helper()
	d, err := quota.Peek(t.Context(), store, quota.Charge{Rule: rule, Key: key, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	return d.Decisions[0].Remaining
}

// TestGraphQL: an operation spends its complexity, or what it reports, or nothing if it is refused. A
// refusal is a GraphQL error, with the status and the fields that its content type allows.
func TestGraphQL(t *testing.T) {
	const responseJSON = "application/graphql-response+json"
	wait := `^{"errors":\[{"message":"too many operations, try again in \d+ seconds","extensions":{"code":"RATE_LIMITED","reason":"limit","retryAfter":\d+}}],"data":null}$`
	store := memory()
	h := newGraphQL(t, store, extension.FixedComplexityLimit(30))
	for _, c := range []struct {
		query, accept, body string
		status              int
		waits               bool // the response has a Retry-After
		left                int64
	}{
		{`{ books(first: 3) { title author } }`, responseJSON, `^{"data":{"served":true}}$`, 200, false, 13},
		{`{ __typename }`, "application/json", `^{"data":{"served":true}}$`, 200, false, 12},
		{`query few { books(first: 5) { title author } }`, responseJSON, `^{"data":{"served":true}}$`, 200, false, 11},
		{`query late { __typename }`, responseJSON, `internal system error`, 500, false, 11},
		{`{ __schema { types { name } } }`, responseJSON, `^{"data":{"served":true}}$`, 200, false, 10},
		{`{ books(first: 10) { title } }`, responseJSON, wait, 429, true, 10},
		{`{ books(first: 10) { title } }`, "application/json", wait, 200, true, 10},
		{`{ books(first: 20) { title } }`, responseJSON, `^{"errors":\[{"message":"this operation is refused","extensions":{"code":"RATE_LIMITED","reason":"limit"}}],"data":null}$`, 429, false, 10},
		{`{ books(first: 30) { title } }`, responseJSON, `COMPLEXITY_LIMIT_EXCEEDED`, 200, false, 10},
		{`{ nothing }`, responseJSON, `GRAPHQL_VALIDATION_FAILED`, 400, false, 10},
		{`{ books(first: 9) { title } }`, responseJSON, `^{"data":{"served":true}}$`, 200, false, 0},
	} {
		body, _ := json.Marshal(map[string]string{"query": c.query})
		if name := regexp.MustCompile(`^query (\w+)`).FindStringSubmatch(c.query); name != nil {
			body, _ = json.Marshal(map[string]string{"query": c.query, "operationName": name[1]})
		}
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(string(body)))
		for field, value := range map[string]string{"Content-Type": "application/json", "Accept": c.accept, "X-User": "ann"} {
			r.Header.Set(field, value)
		}
		h.ServeHTTP(w, r)
		if refused := strings.Contains(w.Body.String(), "RATE"); (w.Header().Get("Cache-Control") == "no-store") != refused {
			t.Errorf("%s: %v", c.query, w.Header())
		}
		charged := regexp.MustCompile("served|internal|RATE").MatchString(w.Body.String())
		if w.Code != c.status || !regexp.MustCompile(c.body).MatchString(w.Body.String()) || (w.Header().Get("Retry-After") != "") != c.waits || (w.Header().Get("X-Ratelimit-Limit") != "") != charged {
			t.Errorf("%s: %d %s %v", c.query, w.Code, w.Body, w.Header())
		}
		if n := left(t, store, "graphql", "ann", complexity); n != c.left {
			t.Errorf("%s: %d units left, want %d", c.query, n, c.left)
		}
		if left(t, store, "busy", "ann", running) != 1 {
			t.Errorf("%s: still in flight", c.query)
		}
	}
}

// TestGraphQLOperations: the limiter of the page charges complexity. Without the extension that
// computes it, nothing is served.
func TestGraphQLOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, extensions := range map[string][]graphql.HandlerExtension{"served": {extension.FixedComplexityLimit(500)}, "RATE_LIMITED": nil} {
			operations, err := Operations(memory(), weir.ByHeader("X-User"))
			if err != nil {
				t.Fatal(err)
			}
			server := handler.New(library())
			server.AddTransport(transport.POST{})
			for _, e := range extensions {
				server.Use(e)
			}
			w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(`{"query":"{ books(first: 6) { title } }"}`))
			r.Header = http.Header{"Content-Type": {"application/json"}, "X-User": {"ann"}}
			requests := newLimiter(t, memory(), weir.Rule{Name: "requests", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(5000, time.Minute)}})
			requests.Handler(GraphQL(operations, server)).ServeHTTP(w, r)
			left := map[string]string{"served": "993", "RATE_LIMITED": "1000"}[want]
			if !strings.Contains(w.Body.String(), want) || w.Header().Get("X-Ratelimit-Remaining") != left {
				t.Errorf("%d %s %v, want %s, %s left", w.Code, w.Body, w.Header(), want, left)
			}
		}
	})
}

// An accepting is an http.RoundTripper that keeps the last response of a client, and says what it accepts.
type accepting struct {
	accept string
	last   *http.Response
}

func (a *accepting) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-User", "ann")
	if a.accept != "" {
		r.Header.Set("Accept", a.accept)
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	a.last = res
	return res, err
}

// TestGraphQLClient: a client in another library gets over HTTP what the page promises: data and the fields of
// the limit, and of a refusal an error with code, reason and retryAfter, with the status that the media type
// allows.
func TestGraphQLClient(t *testing.T) {
	for accept, status := range map[string]int{"": 200, "application/json": 200, "application/graphql-response+json": 429,
		"application/graphql-response+json, application/json;q=0.9": 429} {
		t.Run(accept, func(t *testing.T) {
			operations, err := Operations(memory(), weir.ByHeader("X-User"))
			if err != nil {
				t.Fatal(err)
			}
			server := handler.New(library())
			server.AddTransport(transport.POST{})
			server.Use(extension.FixedComplexityLimit(2000))
			limiter := newLimiter(t, memory(), weir.Rule{Name: "requests", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(5000, time.Minute)}})
			mux := http.NewServeMux()
			mux.Handle("/graphql", limiter.Handler(GraphQL(operations, server)))
			s := httptest.NewServer(mux)
			defer s.Close()
			sent := &accepting{accept: accept}
			client := genqlient.NewClient(s.URL+"/graphql", &http.Client{Transport: sent})
			// ask returns the errors of a query for that many books, each of which costs 2 units.
			ask := func(books int) (served bool, list gqlerror.List, status int) {
				var data struct{ Served bool }
				err := client.MakeRequest(t.Context(), &genqlient.Request{Query: "query books($n: Int!) { books(first: $n) { title author } }", OpName: "books",
					Variables: map[string]int{"n": books}}, &genqlient.Response{Data: &data})
				status = 200
				var failed *genqlient.HTTPError
				if errors.As(err, &failed) {
					return data.Served, failed.Response.Errors, failed.StatusCode
				}
				if err != nil && !errors.As(err, &list) {
					t.Fatal(err)
				}
				return data.Served, list, status
			}
			begun := time.Now()
			if served, list, _ := ask(300); !served || list != nil || sent.last.Header.Get("X-Ratelimit-Limit") != "1000" || sent.last.Header.Get("X-Ratelimit-Remaining") != "399" {
				t.Errorf("got %v, %v, %v", served, list, sent.last.Header)
			}
			served, list, got := ask(300)
			if served || len(list) != 1 || got != status {
				t.Fatalf("got %v, %v and status %d, want a refusal with %d", served, list, got, status)
			}
			after, err := strconv.Atoi(sent.last.Header.Get("Retry-After"))
			want := map[string]any{"code": "RATE_LIMITED", "reason": "limit", "retryAfter": float64(after)}
			if err != nil || after < 1 || after > 13 || !maps.Equal(list[0].Extensions, want) {
				t.Errorf("got %v, want %v; Retry-After %d, %v", list[0].Extensions, want, after, err)
			}
			if text := fmt.Sprintf("too many operations, try again in %d seconds", after); list[0].Message != text {
				t.Errorf("got %q, want %q", list[0].Message, text)
			}
			h, most := sent.last.Header, 400+int(time.Since(begun)*1000/time.Minute) // 1000 a minute come back
			if left, err := strconv.Atoi(h.Get("X-Ratelimit-Remaining")); err != nil || left < 399 || left > most || h.Get("Cache-Control") != "no-store" {
				t.Errorf("a refusal has the fields %v; want 399 to %d units left", h, most)
			}
			if _, list, got := ask(600); got != status || len(list) != 1 || !maps.Equal(list[0].Extensions, map[string]any{"code": "RATE_LIMITED", "reason": "limit"}) {
				t.Errorf("more than the limit ever admits: got %v and status %d", list, got)
			}
			if served, _, _ := ask(100); !served {
				t.Error("an operation that fits is refused")
			}
		})
	}
}

// TestGraphQLPanic: an operation that has no response is no longer in flight after its request.
func TestGraphQLPanic(t *testing.T) {
	store := memory()
	server := httptest.NewServer(newGraphQL(t, store, extension.FixedComplexityLimit(30)))
	defer server.Close()
	r, _ := http.NewRequest("POST", server.URL, strings.NewReader(`{"query":"query early { __typename }","operationName":"early"}`))
	r.Header = http.Header{"Content-Type": {"application/json"}, "X-User": {"ann"}}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 500 {
		t.Errorf("status %d", res.StatusCode)
	}
	free(t, store, "busy", "ann")
}

// TestGraphQLSubscription: a subscription is one operation, in flight until it ends. Operations in the
// same WebSocket are refused one by one.
func TestGraphQLSubscription(t *testing.T) {
	store := memory()
	server := httptest.NewServer(newGraphQL(t, store, extension.FixedComplexityLimit(30)))
	defer server.Close()
	dialer := gorilla.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), http.Header{"X-User": {"ann"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	send := func(text string) {
		if err := conn.WriteMessage(gorilla.TextMessage, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	receive := func(want string) {
		t.Helper()
		if _, text, err := conn.ReadMessage(); err != nil || !regexp.MustCompile(want).Match(text) {
			t.Fatalf("%s, %v; want %s", text, err, want)
		}
	}
	send(`{"type":"connection_init"}`)
	receive("connection_ack")
	send(`{"id":"a","type":"subscribe","payload":{"query":"subscription { loans }"}}`)
	receive(`served.*"id":"a","type":"next"`)
	if n := left(t, store, "graphql", "ann", complexity); n != 19 {
		t.Errorf("%d units left", n)
	}
	send(`{"id":"b","type":"subscribe","payload":{"query":"{ __typename }"}}`)
	receive(`RATE_LIMITED.*"id":"b","type":"next"`)
	receive(`"id":"b","type":"complete"`)
	send(`{"id":"a","type":"complete"}`)
	free(t, store, "busy", "ann")
	receive(`"id":"a","type":"complete"`)
	send(`{"id":"c","type":"subscribe","payload":{"query":"{ __typename }"}}`)
	receive(`served.*"id":"c","type":"next"`)
}
