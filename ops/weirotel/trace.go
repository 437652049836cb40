package weirotel

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/traced"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// Trace returns a store that records each call to next as a span if the caller's context contains a
// sampled span. Pass the returned store to weir.New. Trace should wrap all other stores, so next
// is, for example, a store from package stack.
//
//	limiter, err := weir.New(weirotel.Trace(otel.Tracer("weir"), store), weir.Options{Rules: rules})
//
// A span records the decision, the rule and limit that determined it, and whether the store failed
// or a fallback store was used. Attributes never contain keys. Rules in shadow mode have a separate
// span, whose outcome does not affect the request. If a request is refused without a call to the
// store, there is no span.
//
// The context that next receives contains the span, so the spans of a traced Redis client become
// children of this span. Several requests can share one Redis call, as with quota.Coalesce and in
// redisstore's queue. The call's parent is then the span of one request, and the spans of the other
// requests link to that span.
//
// A panic in the tracer does not affect the decision. Panics are reported to the OpenTelemetry
// error handler, at most once a second. Trace panics if tracer or next is nil.
func Trace(tracer trace.Tracer, next weir.Store) weir.Store {
	switch {
	case tracer == nil:
		panic("weirotel: Trace: the tracer is nil")
	case safe.Nil(next):
		panic("weirotel: Trace: the store is nil")
	}
	s := &store{tracer: tracer, next: next, attributes: trace.WithAttributes(attribute.String("weir.store",
		fmt.Sprintf("%T", next)))}
	if payer, ok := next.(optional.Payer); ok {
		return &paying{s, payer}
	}
	if watcher, ok := next.(optional.Watcher); ok { // such as a stack
		return struct {
			*store
			optional.Watcher
		}{s, watcher}
	}
	return s
}

type store struct {
	tracer     trace.Tracer
	next       weir.Store
	attributes trace.SpanStartEventOption // of all spans
	panics     sparse.Gate
}

// Stores returns the store whose calls are traced, for weirprom.New and package admin.
func (s *store) Stores() []weir.Store { return []weir.Store{s.next} }

// Announce implements optional.Announcer, for a store that is one, such as a stack.Store.
func (s *store) Announce(rule string, limits []quota.Limit) {
	if a, ok := s.next.(optional.Announcer); ok {
		a.Announce(rule, limits)
	}
}

// A paying store is an optional.Payer.
type paying struct {
	*store
	payer optional.Payer
}

// Unpaid implements optional.Payer.
func (p *paying) Unpaid() weir.Store { return Trace(p.tracer, p.payer.Unpaid()) }

// Take implements weir.Store.
func (s *store) Take(ctx context.Context, t *quota.Transaction) error {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return s.next.Take(ctx, t)
	}
	return s.trace(ctx, t)
}

var errPanicked = errors.New("the store panicked")

func (s *store) trace(ctx context.Context, t *quota.Transaction) (err error) {
	var c call
	s.safely(func() {
		_, span := s.tracer.Start(ctx, spanName(t), s.attributes)
		c = call{s, span}
	})
	if c.span == nil {
		return s.next.Take(ctx, t)
	}
	err = errPanicked // until next returns
	defer func() { s.safely(func() { c.end(t, err) }) }()
	return s.next.Take(traced.NewContext(trace.ContextWithSpan(ctx, c.span), c), t)
}

// safely calls f, which calls the tracer.
func (s *store) safely(f func()) {
	defer func() {
		if p := recover(); p != nil {
			if unlogged, ok := s.panics.Pass(); ok {
				otel.Handle(fmt.Errorf("weirotel: the tracer panicked: %v (unlogged: %d)", p, unlogged))
			}
		}
	}()
	f()
}

// spanName returns the name of a span. There are few names, because backends group spans by name.
func spanName(t *quota.Transaction) string {
	switch {
	case t.Mode == quota.ModePeek:
		return "weir.peek"
	case t.Mode == quota.ModeForce:
		return "weir.force"
	case t.Mode == quota.ModeForget:
		return "weir.forget"
	case len(t.Charges) > 0 && t.Charges[0].Cost < 0:
		return "weir.refund"
	}
	return "weir.decide"
}

// A call is a traced.Call.
type call struct {
	store *store
	span  trace.Span
}

// Joined implements traced.Call.
func (c call) Joined(leader context.Context) {
	c.store.safely(func() { c.span.AddLink(trace.LinkFromContext(leader)) })
}

// FellBack implements traced.Call.
func (c call) FellBack(cause string) {
	c.store.safely(func() { c.span.SetAttributes(attribute.String("weir.fallback", cause)) })
}

func (c call) end(t *quota.Transaction, err error) {
	defer c.span.End()
	if !c.span.IsRecording() {
		return
	}
	if err != nil {
		c.span.SetAttributes(attribute.String("weir.outcome", "error"), attribute.String("error.type", quota.Cause(err)))
		c.span.SetStatus(codes.Error, err.Error())
		return
	}
	outcome := "allowed"
	switch {
	case !t.Allowed():
		outcome = "refused"
	case t.Wait > 0:
		outcome = "delayed"
	}
	attributes := append(make([]attribute.KeyValue, 0, 8), attribute.String("weir.outcome", outcome),
		attribute.Int("weir.charges", len(t.Charges)))
	if t.Wait > 0 {
		attributes = append(attributes, attribute.Float64("weir.wait", t.Wait.Seconds()))
	}
	if i := deciding(t); i >= 0 {
		ch, d := &t.Charges[i], &t.Decisions[i]
		attributes = append(attributes, attribute.String("weir.rule", ch.Rule),
			attribute.String("weir.limit", ch.Limit.Label()))
		if d.Remaining >= 0 {
			attributes = append(attributes, attribute.Int64("weir.remaining", d.Remaining))
		}
		if !d.Allowed && d.RetryAfter != quota.Never {
			attributes = append(attributes, attribute.Float64("weir.retry_after", d.RetryAfter.Seconds()))
		}
	}
	c.span.SetAttributes(attributes...)
}

// deciding returns the index of the charge that refuses for the longest time or, if no charge
// refuses, of the charge with the fewest units left. If no charge refuses, it ignores charges that
// only look up a state, such as a ban, unless there are no others. It returns -1 if there are no
// charges.
func deciding(t *quota.Transaction) int {
	best := -1
	for i := range t.Decisions {
		if best < 0 || before(t, i, best) {
			best = i
		}
	}
	return best
}

func before(t *quota.Transaction, i, j int) bool {
	a, b := &t.Decisions[i], &t.Decisions[j]
	looks, others := t.Charges[i].Cost == 0, t.Charges[j].Cost == 0
	switch {
	case a.RetryAfter != b.RetryAfter: // 0 if it is allowed
		return a.RetryAfter > b.RetryAfter
	case a.Allowed && looks != others:
		return others
	}
	return uint64(a.Remaining) < uint64(b.Remaining) // -1 is unknown
}
