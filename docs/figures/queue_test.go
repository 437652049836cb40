package figures_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestQueue draws how requests wait for slots in the queue of a leaky bucket, which two processes share.
func TestQueue(t *testing.T) {
	const within = 3 * time.Second
	limit := algorithms.LeakyBucket(5, 1, time.Second)
	type request struct {
		process  string
		at, wait time.Duration
		refused  bool
	}
	var all []request
	synctest.Test(t, func(t *testing.T) {
		store, begin := memstore.New(memstore.Options{}), time.Now()
		for _, r := range []struct {
			process string
			at      time.Duration
		}{{"A", 0}, {"A", 200}, {"B", 400}, {"A", 600}, {"B", 800}, {"B", 4300}, {"A", 4500}} {
			time.Sleep(time.Until(begin.Add(r.at * time.Millisecond)))
			tx := quota.Transaction{Within: within, Charges: []quota.Charge{{Rule: "api", Key: "k", Limit: limit, Cost: 1}}}
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
			all = append(all, request{r.process, r.at * time.Millisecond, tx.Wait, !tx.Allowed()})
		}
	})
	last, refused := time.Duration(-1), 0
	for _, r := range all {
		if r.refused {
			refused++
			continue
		}
		if leaves := r.at + r.wait; last >= 0 && leaves < last+time.Second {
			t.Errorf("a request leaves at %v, and the one before it at %v, want a second apart", leaves, last)
		}
		last = r.at + r.wait
	}
	if refused != 1 {
		t.Errorf("%d requests are refused, want 1", refused)
	}

	const left, right, arrive, leave = 88.0, 404.0, 92.0, 168.0
	x := func(at time.Duration) float64 { return left + (right-left)*at.Seconds()/6 }
	d := draw(232, "One queue for two processes",
		fmt.Sprintf("Requests of two processes arrive at uneven times, and leave the queue a second apart, in the order of arrival. %d of %d is refused at once, because its slot would come after MaxWait, 3 s.", refused, len(all)))
	d.text(16, 52, "soft", "1 a second, MaxWait 3 s. A and B: the process of a request.")
	d.text(16, arrive+4, "name", "arrives")
	d.text(16, leave+4, "name", "is served")
	d.line("grid", left, arrive+8, right, arrive+8)
	d.line("grid", left, leave-10, right, leave-10)
	for _, r := range all {
		d.text(x(r.at), arrive-12, "soft mid", r.process)
		if r.refused {
			d.no(x(r.at), arrive)
			continue
		}
		d.yes(x(r.at), arrive)
		d.line("edge", x(r.at), arrive+4, x(r.at+r.wait), leave-4)
		d.yes(x(r.at+r.wait), leave)
	}
	for s := 0; s <= 6; s++ {
		d.text(x(time.Duration(s)*time.Second), 192, "soft mid", fmt.Sprint(s))
	}
	d.text((left+right)/2, 214, "soft mid", "seconds; cross: refused at once")
	text := d.end()
	wellFormed(t, text)
	current(t, "queue.svg", text)
}

// TestWays draws the way of a request behind a proxy.
func TestWays(t *testing.T) {
	d := draw(250, "A request behind a proxy",
		"A client sends a request to nginx, Caddy, Traefik or Envoy. The proxy asks weir serve, which charges all limits in one call of Redis. If they allow the request, the proxy forwards it to your server; otherwise the client gets a 429 from the proxy.")
	box := func(x, y float64, name, soft string) {
		d.rect("area", x, y, 112, 48)
		d.text(x+56, y+21, "name mid", name)
		d.text(x+56, y+38, "soft mid", soft)
	}
	box(16, 60, "client", "")
	box(154, 60, "proxy", "nginx, Envoy, …")
	box(292, 60, "your server", "")
	box(154, 172, "weir serve", "limits.yaml")
	box(292, 172, "Redis", "counts")
	arrow := func(x1, y1, x2, y2, dx, dy float64) {
		d.line("curve", x1, y1, x2, y2)
		d.printf(`<path class="curve" d="M%s %sL%s %sL%s %s"/>`, num(x2-dx-dy/2), num(y2-dy-dx/2), num(x2), num(y2), num(x2-dx+dy/2), num(y2-dy+dx/2))
	}
	arrow(128, 84, 154, 84, 6, 0)
	arrow(266, 84, 292, 84, 6, 0)
	arrow(210, 108, 210, 172, 0, 6)
	arrow(266, 196, 292, 196, 6, 0)
	d.text(141, 74, "soft mid", "1")
	d.text(202, 144, "soft end", "2  /auth: allowed?")
	d.text(279, 186, "soft mid", "3")
	d.text(279, 74, "soft mid", "4")
	d.text(222, 144, "soft", "429: the client gets it at once")
	text := d.end()
	wellFormed(t, text)
	current(t, "proxy.svg", text)
}
