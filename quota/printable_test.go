package quota_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestPrintable: a name with a byte that is not printable ASCII is refused, wherever the
// byte is, by Limit.Validate, Take and New.
func TestPrintable(t *testing.T) {
	l := algorithms.GCRA(1, time.Second)
	store := memstore.New(memstore.Options{})
	for n := range 40 {
		for at := range n + 1 {
			for b := range 256 {
				if n > 17 && b%16 > 1 && b != 0x7e && b != 0x7f {
					continue
				}
				checkNameWith(t, l, n, at, byte(b))
			}
		}
	}
	for _, name := range []string{"a\nb", "a\x00", "é", "\x7f"} {
		for _, c := range []quota.Charge{{Rule: name, Limit: l}, {Rule: "r", Limit: l.Named(name)}} {
			checkNotPrintable(t, store, c)
		}
	}
}

// checkNameWith puts the byte b into a name of n bytes, and checks that the name is valid if
// and only if the byte is printable. If at is n, the name stays without the byte.
func checkNameWith(t *testing.T, l quota.Limit, n, at int, b byte) {
	t.Helper()
	name := []byte(strings.Repeat("~ ", 20)[:n])
	want := true
	if at < n {
		name[at] = b
		want = ' ' <= b && b <= '~'
	}
	if got := l.Named(string(name)).Validate() == nil; got != want {
		t.Fatalf("a limit named %q: got valid %v, want %v", name, got, want)
	}
}

// checkNotPrintable expects an error for a charge with a name that is not printable.
func checkNotPrintable(t *testing.T, store quota.Store, c quota.Charge) {
	t.Helper()
	tx := quota.Transaction{Charges: []quota.Charge{c}}
	if err := tx.Validate(); err == nil {
		t.Errorf("a charge of rule %q, limit %q: got no error", c.Rule, c.Limit.Name)
	}
	if _, err := weir.New(store, weir.Options{Rules: []weir.Rule{{Name: c.Rule, Key: weir.Global(), Limits: []quota.Limit{c.Limit}}}}); err == nil {
		t.Errorf("New: rule %q, limit %q: got no error", c.Rule, c.Limit.Name)
	}
	if err := store.Take(context.Background(), &tx); err == nil {
		t.Errorf("Take: rule %q, limit %q: got no error", c.Rule, c.Limit.Name)
	}
}

// BenchmarkValidate measures Transaction.Validate, which every Take calls first.
func BenchmarkValidate(b *testing.B) {
	for name, limit := range map[string]string{"none": "", "short": "1m", "long": "a limit of a long name, 40 bytes or more"} {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "auth.createToken", Limit: algorithms.GCRA(1, time.Second).Named(limit)}}}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := tx.Validate(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
