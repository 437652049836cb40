// Chat gives each user of a chat room a bucket of 3 messages, with one more every 4
// seconds, and prints which messages of a spammer and of ordinary users pass. It calls the
// store without HTTP.
//
//	go run -C _examples ./chat
//	go run -C _examples ./chat -speed 10
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A message is a text that a user tries to send, at a time after the start of the chat.
type message struct {
	at   time.Duration
	user string
	text string
}

func main() {
	speed := flag.Int("speed", 1, "how many times as fast messages and tokens come, from 1 to 100")
	flag.Parse()
	log.SetFlags(0)
	if *speed < 1 || *speed > 100 {
		log.Fatalf("-speed is %d; it must be from 1 to 100", *speed)
	}
	scale := time.Duration(*speed)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	fmt.Println("Each user has 3 messages, and one more every 4 seconds. Of several refusals in a row, only the first has a line.")
	room := room{
		store: memstore.New(memstore.Options{}),
		limit: algorithms.TokenBucket(3, 1, 4*time.Second/scale),
	}
	sent, allowed := map[string]int{}, map[string]int{}
	refused := map[string]int{} // refusals of each user since the last message that was allowed
	start := time.Now()
	for _, m := range messages() {
		select {
		case <-time.After(time.Until(start.Add(m.at / scale))):
		case <-ctx.Done():
			return
		}
		remaining, retry, err := room.say(ctx, m.user)
		if err != nil {
			log.Fatal(err)
		}
		sent[m.user]++
		if retry > 0 {
			if refused[m.user]++; refused[m.user] > 1 {
				continue
			}
		}
		verdict := demo.Red("refused") + fmt.Sprintf(", the next is allowed in %.1f s", (retry*scale).Seconds())
		if retry == 0 {
			allowed[m.user]++
			verdict = demo.Green("allowed") + fmt.Sprintf(", %d left", remaining)
			if n := refused[m.user]; n > 0 {
				verdict += fmt.Sprintf(", after %d refusals", n)
			}
			refused[m.user] = 0
		}
		fmt.Printf("%4.1f s  %-7s  %-16s %s\n", m.at.Seconds(), m.user, m.text, verdict)
	}
	fmt.Print("\n■ allowed, □ refused\n")
	for _, user := range []string{"anna", "ben", "spammer"} {
		fmt.Printf("%-10s %s: %d of %d messages were allowed\n", demo.Bar(allowed[user], sent[user]), user, allowed[user], sent[user])
	}
}

type room struct {
	store quota.Store
	limit quota.Limit
}

// say takes one token from the bucket of a user. remaining is how many tokens are left.
// retry is 0 if the message is allowed, and otherwise how long the user must wait.
func (r *room) say(ctx context.Context, user string) (remaining int64, retry time.Duration, err error) {
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "chat", Key: user, Limit: r.limit, Cost: 1}}}
	if err := r.store.Take(ctx, &t); err != nil {
		return 0, 0, err
	}
	return t.Decisions[0].Remaining, t.RetryAfter(), nil
}

// messages returns the messages of a chat of 20 seconds, sorted by time.
func messages() []message {
	all := []message{
		{100 * time.Millisecond, "anna", "hi all"},
		{1300 * time.Millisecond, "ben", "hi anna"},
		{2200 * time.Millisecond, "anna", "who is that?"},
		{3300 * time.Millisecond, "anna", "can it be muted?"},
		{7200 * time.Millisecond, "ben", "it mutes itself"},
		{11300 * time.Millisecond, "anna", "so it does"},
		{15200 * time.Millisecond, "ben", "bye"},
	}
	for at := time.Duration(0); at < 20*time.Second; at += 700 * time.Millisecond {
		all = append(all, message{at, "spammer", "BUY NOW"})
	}
	slices.SortStableFunc(all, func(a, b message) int { return cmp.Compare(a.at, b.at) })
	return all
}
