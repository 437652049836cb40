package scene

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// chatLimit limits the messages of each user, as in _examples/chat.
var chatLimit = algorithms.TokenBucket(3, 1, 4*time.Second)

// A message is a text that a user tries to send, at a time after the start of the chat.
type message struct {
	at         time.Duration
	user, text string
}

var messages = func() []message {
	all := []message{
		{100 * time.Millisecond, "anna", "hi all"},
		{1300 * time.Millisecond, "ben", "hi anna, did you see that goal?"},
		{2200 * time.Millisecond, "anna", "who is that?"},
		{3300 * time.Millisecond, "anna", "can it be muted?"},
		{7200 * time.Millisecond, "ben", "it mutes itself"},
		{11300 * time.Millisecond, "anna", "so it does"},
		{15200 * time.Millisecond, "ben", "back to the match"},
	}
	for at := time.Duration(0); at < 20*time.Second; at += 700 * time.Millisecond {
		all = append(all, message{at, "spammer", "BUY NOW"})
	}
	slices.SortStableFunc(all, func(a, b message) int { return cmp.Compare(a.at, b.at) })
	return all
}()

// A line is a message of the chat with its decision.
type line struct {
	User  string `json:"user"`
	Text  string `json:"text"`
	OK    bool   `json:"ok"`
	Retry int64  `json:"retry"` // RetryAfter of the decision, in µs
	Last  bool   `json:"last"`  // whether this is the last line of the chat
}

func chatCharge(user string, cost int64) quota.Charge {
	return quota.Charge{Rule: "chat", Key: user, Limit: chatLimit, Cost: cost}
}

// startChat starts the chat now, with full buckets.
func (s *Scene) startChat() error {
	if err := quota.Reset(context.Background(), s.store, chatCharge("anna", 0), chatCharge("ben", 0), chatCharge("spammer", 0)); err != nil {
		return err
	}
	start := s.now
	s.chat = &source{
		at: func(n int64) int64 {
			if n >= int64(len(messages)) {
				return never
			}
			return start + messages[n].at.Microseconds()
		},
		fire: func(n, _ int64) error { return s.say(messages[n], n == int64(len(messages)-1)) },
	}
	return nil
}

func (s *Scene) say(m message, last bool) error {
	t := quota.Transaction{Charges: []quota.Charge{chatCharge(m.user, 1)}}
	if err := s.take(&t); err != nil {
		return err
	}
	s.lines = append(s.lines, line{m.user, m.text, t.Allowed(), t.RetryAfter().Microseconds(), last})
	return nil
}
