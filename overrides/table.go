package overrides

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
)

// An Entry sets the limits of one key, or of all keys with the same prefix. Exactly one of Limits,
// Unlimited and Denied must be set. In an Entry with Nested entries, all three may be unset.
type Entry struct {
	// Key is a key as the KeyFunc returns it, or its quota.Charge.StoredKey. A Key that ends with
	// an asterisk, such as "tenant-a/*", matches all keys with that prefix. In NewJoined, Key is
	// matched against the first part of a joined key.
	Key string

	// Limits replace those of the rule. See weir.Rule.ForKey for the fields that a limit can
	// omit.
	Limits []weir.Limit

	Unlimited bool // the rule does not limit the key
	Denied    bool // the rule refuses every request of the key

	// Nested are entries for the second part of a joined key. Only NewJoined uses them.
	Nested []Entry
}

const (
	maxLimits = 16  // limits of an entry
	maxStart  = 128 // bytes of a prefix of keys
)

// check returns an error if the entry itself is invalid. mayNest says whether it may
// have Nested.
func (e *Entry) check(mayNest bool) error {
	start, isStart := strings.CutSuffix(e.Key, "*")
	n := 0
	for _, set := range [...]bool{len(e.Limits) > 0, e.Unlimited, e.Denied} {
		if set {
			n++
		}
	}
	switch {
	case e.Key == "":
		return errors.New("the key of an entry is empty")
	case isStart && len(start) > maxStart:
		return fmt.Errorf("key %.20q… has a prefix of %d bytes; want at most %d", e.Key, len(start), maxStart)
	case n > 1:
		return fmt.Errorf("key %q has more than one of Limits, Unlimited and Denied; want one", e.Key)
	case n == 0 && len(e.Nested) == 0:
		return fmt.Errorf("key %q has no limits; want Limits, Unlimited or Denied", e.Key)
	case len(e.Nested) > 0 && !mayNest:
		return fmt.Errorf("key %q has nested entries; only an entry for the first part of joined keys may have them", e.Key)
	case len(e.Limits) > maxLimits:
		return fmt.Errorf("key %q has %d limits; want at most %d", e.Key, len(e.Limits), maxLimits)
	}
	for _, l := range e.Limits {
		if l.Quota < 1 {
			return fmt.Errorf("key %q: quota is %d; want at least 1, or Denied to refuse the key", e.Key, l.Quota)
		}
	}
	return nil
}

// policy returns the policy of the entry. It is zero if the entry only has Nested.
func (e *Entry) policy() weir.Policy {
	switch {
	case e.Unlimited:
		return weir.Unlimited()
	case e.Denied:
		return weir.Denied()
	}
	return weir.Limited(slices.Clone(e.Limits)...)
}

// A Table finds the entry for a key. An exact match takes precedence over any prefix, and a longer
// prefix takes precedence over a shorter one. A Table never changes, so it is safe for concurrent
// use.
type Table struct {
	exact   map[string]*node // by stored key
	starts  []start          // sorted
	head    int              // bytes of the shortest start that is not empty
	heads   map[string]span  // by the first head bytes of a key: the range of starts that begin with them
	joined  bool             // keys are those of weir.Join
	all     bool             // one of the starts is empty, so every key begins with it
	digests bool             // a key of exact may be a digest
}

type node struct {
	policy weir.Policy
	until  time.Time // for Live: when the node expires; zero means never
	nested *Table
}

type start struct {
	text    string
	node    *node
	shorter int // the index of the longest start that this one begins with, or -1
}

type span struct{ from, to int }

// New returns a table whose entries are matched against whole keys. It returns an error if two
// entries have the same key, or if an entry is invalid. The error names the entry and says what is
// wrong.
func New(entries ...Entry) (*Table, error) { return newTable(entries, false, false) }

// NewJoined returns a table for keys that were built by [weir.Join]. An Entry is matched against
// the first part of a key, and its Nested entries are matched against the second part. If no Nested
// entry matches, the Entry itself applies. If the Entry has only Nested entries, the Entry with the
// next-longest matching prefix applies.
func NewJoined(entries ...Entry) (*Table, error) { return newTable(entries, true, false) }

func twice(key string) error {
	return fmt.Errorf("overrides: %w", fmt.Errorf("two entries for the key %q", key))
}

func newTable(entries []Entry, joined, nested bool) (*Table, error) {
	t := &Table{exact: make(map[string]*node), joined: joined}
	for i := range entries {
		e := &entries[i]
		if err := e.check(joined && !nested); err != nil {
			return nil, fmt.Errorf("overrides: %w", err)
		}
		n := &node{policy: e.policy()}
		if len(e.Nested) > 0 {
			var err error
			if n.nested, err = newTable(e.Nested, false, true); err != nil {
				return nil, err
			}
		}
		if !t.add(e.Key, n) {
			return nil, twice(e.Key)
		}
	}
	return t, t.finish()
}

// add adds the node of a key and returns true, unless exact already has a node for the
// key.
func (t *Table) add(key string, n *node) bool {
	if text, ok := strings.CutSuffix(key, "*"); ok {
		t.starts = append(t.starts, start{text, n, -1})
		return true // finish finds duplicates
	}
	stored := storedkey.Of(key)
	if t.exact[stored] != nil {
		return false
	}
	t.exact[stored] = n
	t.digests = t.digests || strings.HasPrefix(stored, "sha256:")
	return true
}

// finish prepares the starts for searches. It returns an error if two of them are equal.
func (t *Table) finish() error {
	slices.SortFunc(t.starts, func(a, b start) int { return cmp.Compare(a.text, b.text) })
	t.heads = make(map[string]span)
	t.all = len(t.starts) > 0 && t.starts[0].text == ""
	for i := range t.starts {
		if n := len(t.starts[i].text); n > 0 && (t.head == 0 || n < t.head) {
			t.head = n
		}
	}
	for i := range t.starts {
		if text := t.starts[i].text; text != "" {
			s, ok := t.heads[text[:t.head]]
			if !ok {
				s.from = i
			}
			s.to = i + 1
			t.heads[text[:t.head]] = s
		}
	}
	for i := 1; i < len(t.starts); i++ {
		s := &t.starts[i]
		if s.text == t.starts[i-1].text {
			return twice(s.text + "*")
		}
		for s.shorter = i - 1; s.shorter >= 0 && !strings.HasPrefix(s.text, t.starts[s.shorter].text); {
			s.shorter = t.starts[s.shorter].shorter
		}
	}
	return nil
}

// Len returns the number of entries, not counting nested ones.
func (t *Table) Len() int { return len(t.exact) + len(t.starts) }

// ForKey returns the policy for a key, or the zero Policy if no entry matches the key. Use it as
// weir.Rule.ForKey.
func (t *Table) ForKey(key string) weir.Policy {
	if !t.joined && !t.mayHave(key) { // for most keys, two lookups show that there is no entry
		return weir.Policy{}
	}
	if !t.joined {
		return t.find(key, "")
	}
	first, rest, ok := cutPart(key)
	if !ok {
		return weir.Policy{}
	}
	second, _, _ := cutPart(rest)
	return t.find(first, second)
}

// mayHave reports whether there may be an entry for a key.
func (t *Table) mayHave(key string) bool {
	if t.head > 0 && len(key) >= t.head {
		if _, ok := t.heads[key[:t.head]]; ok {
			return true
		}
	}
	return t.all || len(key) > maxStart && t.digests || t.exact[key] != nil
}

// find returns the policy of the most specific entry for a key. For a table of joined
// keys, the argument key is the first part, and second is the second part.
func (t *Table) find(key, second string) weir.Policy {
	if len(t.exact) > 0 && (len(key) <= maxStart || t.digests) {
		if n := t.exact[storedkey.Of(key)]; n != nil {
			if p := n.find(second); !p.Is(weir.Policy{}) {
				return p
			}
		}
	}
	for i := t.last(key); i >= 0; i = t.starts[i].shorter {
		s := &t.starts[i]
		if strings.HasPrefix(key, s.text) {
			if p := s.node.find(second); !p.Is(weir.Policy{}) {
				return p
			}
		}
	}
	return weir.Policy{}
}

// last returns the index of a start, or -1 if key begins with none of the starts. From
// there, the indexes in shorter lead to every start that key begins with. For most keys,
// one lookup of the first head bytes shows that there is none.
func (t *Table) last(key string) int {
	if t.head > 0 && len(key) >= t.head {
		if s, ok := t.heads[key[:t.head]]; ok {
			i, found := slices.BinarySearchFunc(t.starts[s.from:s.to], key, func(s start, key string) int { return strings.Compare(s.text, key) })
			if found {
				i++
			}
			if i > 0 {
				return s.from + i - 1
			}
		}
	}
	if t.all {
		return 0
	}
	return -1
}

// unexpired reports whether a time of expiry is in the future, or zero, which means never.
func unexpired(end time.Time) bool { return end.IsZero() || time.Now().Before(end) }

func (n *node) find(second string) weir.Policy {
	if !unexpired(n.until) {
		return weir.Policy{}
	}
	if n.nested != nil {
		if p := n.nested.find(second, ""); !p.Is(weir.Policy{}) {
			return p
		}
	}
	return n.policy
}

// cutPart returns the first part of a joined key, and what follows it.
func cutPart(key string) (part, rest string, ok bool) {
	digits, after, ok := strings.Cut(key, ":")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil || n >= math.MaxInt32 || int(n) >= len(after) {
		return "", "", false
	}
	return after[:n], after[n+1:], after[n] == ','
}
