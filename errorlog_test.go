package weir_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestErrorLog: a store that fails for ten seconds causes ten log lines. Each later line
// says how many errors since the line before were not logged.
func TestErrorLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := must(t, failing{errors.New("away")}, weir.Options{
			Logger: slog.New(slog.NewTextHandler(&out, nil)),
			Rules:  []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		}).Handler(served)
		for range 1000 {
			do(h, ask("/", ""))
			time.Sleep(10 * time.Millisecond)
		}
		if n := strings.Count(out.String(), "\n"); n != 10 {
			t.Errorf("1000 errors in 10 s are %d lines, want 10:\n%s", n, out.String())
		}
		if !strings.Contains(out.String(), `level=WARN msg="weir: request not decided" rule=api err=away cause=error passed=true unlogged=99`) {
			t.Errorf("got %s, want the error and how many more there were", out.String())
		}
	})
}

// TestErrorLogTask: a log line says what failed. If the request was decided, the line does
// not say that it could not be decided.
func TestErrorLogTask(t *testing.T) {
	givesBack := func(tx *quota.Transaction) bool {
		return slices.ContainsFunc(tx.Charges, func(c quota.Charge) bool { return c.Cost < 0 })
	}
	forces := func(tx *quota.Transaction) bool { return tx.Mode == quota.ModeForce }
	strikes := func(tx *quota.Transaction) bool {
		return slices.ContainsFunc(tx.Charges, func(c quota.Charge) bool { return c.Limit.Name == "penalty strikes" && c.Cost > 0 })
	}
	limits := []weir.Limit{algorithms.GCRA(2, time.Hour)}
	uncountable := []weir.Limit{algorithms.FixedWindow(math.MaxInt64, time.Hour)}
	settles := func(cost int64) weir.Rule {
		return weir.Rule{Limits: limits, Settle: func(weir.Outcome) int64 { return cost }}
	}
	for _, c := range []struct {
		fails func(*quota.Transaction) bool // with which transactions the store fails; nil means with none
		rule  weir.Rule
		want  string
	}{
		{func(*quota.Transaction) bool { return true }, weir.Rule{Limits: limits}, "request not decided"},
		{givesBack, settles(0), "units not refunded"},
		{forces, settles(2), "final cost not charged"},
		{forces, weir.Rule{Limits: []weir.Limit{algorithms.InFlight(9, time.Minute)}}, "request in flight not renewed"},
		{givesBack, weir.Rule{Limits: []weir.Limit{algorithms.InFlight(9, time.Minute)}}, "units not refunded"},
		{strikes, weir.Rule{Limits: limits, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Hour), Duration: time.Hour}}, "strike not counted"},
		{nil, weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Limited(uncountable...) }}, "limit of Policy lowered"},
		{nil, weir.Rule{Limits: limits, ForKey: func(string) weir.Policy { return weir.Limited(uncountable...) }}, "policy of ForKey ignored"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			l := must(t, failingAt(c.fails), errorLogOptions(&out, c.rule))
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(40 * time.Second) }))
			for range 3 {
				do(h, ask("/", ""))
			}
			checkTask(t, out.String(), c.want)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		pauses := func(tx *quota.Transaction) bool { return tx.Charges[0].Limit.Name == "pause" }
		l := must(t, failingAt(pauses), errorLogOptions(&out, weir.Rule{Limits: limits}))
		client := http.Client{Transport: transport(t, l, weir.TransportOptions{Base: &partner{answer: func(int, *http.Request) *http.Response { return response(503, "Retry-After", "9") }}})}
		client.Get("http://example.com/")
		checkTask(t, out.String(), "key not paused")
	})
}

// failingAt returns a store that fails with some transactions.
func failingAt(fails func(*quota.Transaction) bool) weir.Store {
	next := memstore.New(memstore.Options{})
	return storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if fails != nil && fails(tx) {
			return errDown
		}
		return next.Take(ctx, tx)
	})
}

func errorLogOptions(out *bytes.Buffer, rule weir.Rule) weir.Options {
	rule.Name, rule.Key = "api", weir.Global()
	return weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.NewTextHandler(out, nil))}
}

// checkTask expects that each line of a log has a text, and that there is a line.
func checkTask(t *testing.T, log, want string) {
	t.Helper()
	want = `msg="weir: ` + want + `" rule=api err=`
	if n := strings.Count(log, want); n == 0 || n != strings.Count(log, "\n") {
		t.Errorf("got the log %q, want %s in each line", log, want)
	}
}
