package quota_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A mailer sends mail, a few to each address and not too many in all.
type mailer struct{ store quota.Store }

// send waits for up to a second until both limits allow the mail. If one of them refuses it, the
// mail spends nothing under the other.
func (m mailer) send(ctx context.Context, to string) error {
	return quota.Wait(ctx, m.store, time.Second,
		quota.Charge{Rule: "all", Limit: algorithms.GCRA(100, time.Second), Cost: 1},
		quota.Charge{Rule: "address", Key: to, Limit: algorithms.GCRA(2, time.Hour), Cost: 1},
	)
}

func Example() {
	m := mailer{memstore.New(memstore.Options{})}
	for _, to := range []string{"ada@example.org", "ada@example.org", "ada@example.org", "bob@example.org"} {
		err := m.send(context.Background(), to)
		if limited := (*quota.LimitedError)(nil); errors.As(err, &limited) {
			fmt.Println(to, "must wait for", limited.RetryAfter().Round(time.Minute))
			continue
		}
		fmt.Println(to, err)
	}
	// Output:
	// ada@example.org <nil>
	// ada@example.org <nil>
	// ada@example.org must wait for 30m0s
	// bob@example.org <nil>
}
