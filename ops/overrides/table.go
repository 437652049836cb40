package overrides

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/storedkey"
)

// An Entry sets the limits of one key, of all keys with the same prefix, or of all keys. Exactly
// one of Key, Prefix, All and Network must be set. Exactly one of Limits, Unlimited and Denied must
// be set, unless the Entry has Nested entries: then all three may be unset.
type Entry struct {
	// Key is a key in the form that the KeyFunc returns, or the quota.Charge.StoredKey of such a
	// key. No character of Key has a special meaning, because clients choose keys: an Entry for the
	// key "a*" or "0.0.0.0/1" matches only this key. In NewJoined, Key is matched against the first
	// part of a joined key.
	Key string

	// Prefix matches all keys with this prefix. In NewJoined, Prefix is matched against the first
	// part of a joined key.
	Prefix string

	// All matches every key.
	All bool

	// Network matches all clients whose address is in the network, whatever their keys are. Only a
	// Live table may have such entries, and each of them must be Denied. See Live.DenyFrom.
	Network netip.Prefix

	// Limits replace those of the rule. See weir.Rule.ForKey for the fields that a limit can omit.
	Limits []weir.Limit

	Unlimited bool // the rule does not limit the key
	Denied    bool // the rule refuses every request of the key

	// Nested are entries for the second part of a joined key. Only NewJoined uses them.
	Nested []Entry
}

const (
	maxLimits = 16  // limits of an entry
	maxPrefix = 128 // bytes of a prefix of keys
)

// check returns an error if the entry itself is invalid. mayNest reports whether the
// entry may have Nested entries.
func (e *Entry) check(mayNest bool) error {
	n := count(len(e.Limits) > 0, e.Unlimited, e.Denied)
	switch matches := count(e.Key != "", e.Prefix != "", e.All, e.Network.IsValid()); {
	case matches == 0:
		return errors.New("an entry has none of Key, Prefix, All and Network; want one")
	case matches > 1:
		return fmt.Errorf("%v has more than one of Key, Prefix, All and Network; want one", e)
	case len(e.Prefix) > maxPrefix:
		return fmt.Errorf("%v has %d bytes; want at most %d", e, len(e.Prefix), maxPrefix)
	case n > 1:
		return fmt.Errorf("%v has more than one of Limits, Unlimited and Denied; want one", e)
	case n == 0 && len(e.Nested) == 0:
		return fmt.Errorf("%v has no limits; want Limits, Unlimited or Denied", e)
	case len(e.Nested) > 0 && !mayNest:
		return fmt.Errorf("%v has nested entries; only an entry for the first part of joined keys may have them", e)
	case len(e.Limits) > maxLimits:
		return fmt.Errorf("%v has %d limits; want at most %d", e, len(e.Limits), maxLimits)
	case e.Network.IsValid():
		return e.checkNetwork()
	}
	return e.checkLimits()
}

func (e *Entry) checkNetwork() error {
	switch masked := e.Network.Masked(); {
	case e.Network != masked:
		return fmt.Errorf("%v has bits after its prefix; want %v", e, masked)
	case e.Network.Addr().Is4In6():
		return fmt.Errorf("%v is IPv4-mapped; want an IPv4 network", e)
	case !e.Denied:
		return fmt.Errorf("%v is not Denied, which is all that an entry for a network can be", e)
	}
	return nil
}

func (e *Entry) checkLimits() error {
	for _, l := range e.Limits {
		switch {
		case l.Quota < 1:
			return fmt.Errorf("%v: quota is %d; want at least 1, or Denied to refuse the key", e, l.Quota)
		case l.Period < 0:
			return fmt.Errorf("%v: period is %v; want at least 0", e, l.Period)
		case l.Burst < 0:
			return fmt.Errorf("%v: burst is %d; want at least 0", e, l.Burst)
		}
	}
	return nil
}

func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

// String returns what the entry matches, such as "key \"alice\"" or "network 192.0.2.0/24". It cuts a
// long key or prefix.
func (e *Entry) String() string {
	short := func(s string) string {
		if len(s) > 64 {
			return fmt.Sprintf("%.20q…", s)
		}
		return strconv.Quote(s)
	}
	switch {
	case e.Network.IsValid():
		return "network " + e.Network.String()
	case e.All:
		return "all keys"
	case e.Prefix != "":
		return "prefix " + short(e.Prefix)
	}
	return "key " + short(e.Key)
}

// id returns a text that identifies what the entry matches. Entries that match different things
// have different ids.
func (e *Entry) id() string {
	switch {
	case e.Network.IsValid():
		return "/" + e.Network.String()
	case e.All || e.Prefix != "":
		return "*" + e.Prefix
	}
	return "=" + storedkey.Of(e.Key)
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
	exact    map[string]*node // by stored key
	prefixes map[string]*node
	lengths  []int // the lengths of prefixes, the longest first: at most maxPrefix + 1
	joined   bool  // keys are those of weir.Join

	networks addr.Networks[time.Time] // denied networks, with the time at which each denial expires: see node.until
}

type node struct {
	policy weir.Policy
	until  time.Time // for Live: when the node expires; zero means never
	nested *Table
}

func emptyTable() *Table { return &Table{exact: map[string]*node{}, prefixes: map[string]*node{}} }

// New returns a table whose entries are matched against whole keys. It returns an error if two
// entries have the same key, or if an entry is invalid. The error names the entry and what is
// wrong.
func New(entries ...Entry) (*Table, error) { return newTable(entries, false, false) }

// NewJoined returns a table for keys that were built by [weir.Join]. An Entry is matched against
// the first part of a key, and its Nested entries are matched against the second part. If no Nested
// entry matches, the Entry itself applies. If the Entry has only Nested entries, the Entry with the
// next-longest matching prefix applies.
func NewJoined(entries ...Entry) (*Table, error) { return newTable(entries, true, false) }

func newTable(entries []Entry, joined, nested bool) (*Table, error) {
	t := emptyTable()
	t.joined = joined
	for i := range entries {
		e := &entries[i]
		err := e.check(joined && !nested)
		if err == nil && e.Network.IsValid() {
			err = fmt.Errorf("%v: only a Live table may have networks", e)
		}
		if err != nil {
			return nil, fmt.Errorf("overrides: %w", err)
		}
		n := &node{policy: e.policy()}
		if len(e.Nested) > 0 {
			if n.nested, err = newTable(e.Nested, false, true); err != nil {
				return nil, err
			}
		}
		if !t.add(e, n) {
			return nil, fmt.Errorf("overrides: %w", fmt.Errorf("two entries for %v", e))
		}
	}
	return t, nil
}

// add adds the node of an entry and returns true, unless t already has a node for the same keys.
func (t *Table) add(e *Entry, n *node) bool {
	nodes, name, isPrefix := t.exact, storedkey.Of(e.Key), e.All || e.Prefix != ""
	if isPrefix {
		nodes, name = t.prefixes, e.Prefix
	}
	switch {
	case e.Network.IsValid():
		t.networks.Add(e.Network, n.until)
		return true
	case nodes[name] != nil:
		return false
	case isPrefix && !slices.Contains(t.lengths, len(name)):
		t.lengths = append(t.lengths, len(name))
		slices.SortFunc(t.lengths, func(a, b int) int { return b - a })
	}
	nodes[name] = n
	return true
}

// Len returns the number of entries, not counting nested ones.
func (t *Table) Len() int { return len(t.exact) + len(t.prefixes) }

// ForKey returns the policy for a key, or the zero Policy if no entry matches the key. Use it as
// weir.Rule.ForKey.
func (t *Table) ForKey(key string) weir.Policy {
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

// find returns the policy of the most specific entry for a key. For a table of joined keys, key and
// second are the two parts of the key.
func (t *Table) find(key, second string) weir.Policy {
	if len(t.exact) > 0 {
		if n := t.exact[storedkey.Of(key)]; n != nil {
			if p := n.find(second); !p.Is(weir.Policy{}) {
				return p
			}
		}
	}
	for _, n := range t.lengths {
		if n > len(key) {
			continue
		}
		if start := t.prefixes[key[:n]]; start != nil {
			if p := start.find(second); !p.Is(weir.Policy{}) {
				return p
			}
		}
	}
	return weir.Policy{}
}

// holds reports whether an address lies in a network whose denial has not expired.
func (t *Table) holds(a netip.Addr) bool {
	return a.IsValid() && t.networks.Hold(netip.PrefixFrom(a, a.BitLen()), unexpired)
}

// unexpired reports whether an expiry time is in the future, or is zero, which means never.
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

// cutPart returns the first part of a joined key, and the rest of the key.
func cutPart(key string) (part, rest string, ok bool) {
	digits, after, ok := strings.Cut(key, ":")
	n, err := strconv.ParseUint(digits, 10, 31)
	if !ok || err != nil || n >= math.MaxInt32 || int(n) >= len(after) {
		return "", "", false
	}
	return after[:n], after[n+1:], after[n] == ','
}
