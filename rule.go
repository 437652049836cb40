package weir

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/fields"
)

// A Rule says whom to limit, and by how much.
type Rule struct {
	// Name tells rules apart, in stored keys and in header fields:
	// "auth.createToken". It is printable ASCII.
	Name string

	// Key says whose limit a request counts against, or that the rule does not
	// apply. The client may be gone already: what that ends must not be what says
	// that the rule does not apply.
	Key KeyFunc

	// Limits are several windows of one key: 20 per minute and 5 per 3 seconds.
	// The period names a limit that has no name: "1m", "3s". What was spent is
	// kept under that name, also if it is the only limit: give a limit a name of
	// its own if its period may change. Header fields show an only limit that
	// has no name under the name of the rule.
	Limits []Limit

	// LimitsFor chooses limits for a request, such as those of a tier that a
	// database knows; nil means Limits. If it returns none the rule does not
	// apply: a tier that a map lacks is not limited. A limit that is invalid is
	// an error of this request: see OnError. The context of r does not end when
	// the client hangs up, or a lookup that fails for it would let the client
	// pass: bound its time.
	LimitsFor func(r *http.Request) []Limit

	// Cost is how many units a request costs; nil means 1. 0 looks and spends
	// nothing. A negative cost is refused, as one that never fits: a
	// ContentLength of −1 gives nobody units back.
	Cost func(r *http.Request) int64

	// Settle says what a request cost after all, when the handler has returned:
	// until then Cost is reserved. Nil means Cost. See Outcome.
	Settle func(o Outcome) int64

	// Shadow is the share of keys, from 0 to 1, for which the rule is charged and
	// observed as ever but refuses nobody, delays nobody and tells nobody: 1 tries
	// a rule out, 0.75 enforces it for a quarter of the keys. Which keys those are
	// is the same in every process, and a key that is enforced stays so as Shadow
	// falls. A rule in shadow is charged when the others have let the request
	// pass, by a call of its own. What MaxWait would delay is observed with its
	// Wait, for as long as MaxWaiting leaves a place; it takes none.
	Shadow float64

	// Allow names keys that the rule does not apply to, Deny those that are
	// refused, without asking the store. Allow comes first. Nil is nobody;
	// keys.List has both. The key is what Key returns, all of it.
	Allow, Deny func(key string) bool

	// AllowFrom and DenyFrom do the same by the request, such as the address that it
	// comes from, whatever the key is; keys.AddrList has both. What DenyFrom reports is
	// refused also if the rule has no key for it: a client must not escape by leaving
	// its key out.
	AllowFrom, DenyFrom func(r *http.Request) bool

	// Penalty bans keys that are refused again and again; nil bans nobody.
	Penalty *Penalty

	// Unit is what Cost counts, for the dialects that say so: "tokens",
	// "content-bytes". The zero Unit means "requests".
	Unit string
}

// A rule is a Rule with all that can be prepared.
type rule struct {
	Rule
	policies []policy // nil if LimitsFor decides
	bans     *bans    // nil without a Penalty
	known    knownBans
}

func prepare(r Rule) (*rule, error) {
	switch {
	case r.Name == "":
		return nil, errors.New("weir: a rule has no name")
	case !printable(r.Name):
		return nil, fmt.Errorf("weir: rule %q: %w", r.Name, errNotPrintable)
	case r.Key == nil:
		return nil, fmt.Errorf("weir: rule %q has no key", r.Name)
	case len(r.Limits) == 0 && r.LimitsFor == nil:
		return nil, fmt.Errorf("weir: rule %q has no limits", r.Name)
	case len(r.Limits) > 0 && r.LimitsFor != nil:
		return nil, fmt.Errorf("weir: rule %q has both Limits and LimitsFor: choose one", r.Name)
	case !(r.Shadow >= 0 && r.Shadow <= 1):
		return nil, fmt.Errorf("weir: rule %q: Shadow %v is not from 0 to 1", r.Name, r.Shadow)
	}
	if r.Unit == "" {
		r.Unit = fields.Requests
	}
	if strings.Trim(r.Unit, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return nil, fmt.Errorf("weir: rule %q: unit %q is not of lower-case letters, digits and hyphens", r.Name, r.Unit)
	}
	p := &rule{Rule: r}
	var err error
	if p.policies, err = p.policiesOf(r.Limits); err != nil {
		return nil, err
	}
	p.bans, err = newBans(&r, &p.known)
	return p, err
}

// policiesOf prepares limits of a rule: names them, validates them, and builds
// their fields.
func (r *rule) policiesOf(limits []Limit) ([]policy, error) {
	var policies []policy
	for _, l := range limits {
		alone := l.Name == "" && len(limits) == 1 // fields show it under the rule's name
		err := l.fault()
		l.Name = l.StoredName()
		if err != nil {
			return nil, fmt.Errorf("weir: rule %q: limit %q: %w", r.Name, l.Name, err)
		}
		for _, p := range policies {
			if p.limit.Name == l.Name {
				return nil, fmt.Errorf("weir: rule %q has two limits named %q", r.Name, l.Name)
			}
		}
		policies = append(policies, newPolicy(r, len(limits), alone, l))
	}
	return policies, nil
}

// guards reports whether the rule may refuse what it does not charge, or lengthen the
// wait of what another refuses.
func (rule *rule) guards() bool {
	return rule.Deny != nil || rule.DenyFrom != nil || rule.bans != nil || rule.known.n.Load() > 0
}

// inShadow reports whether the rule is in shadow for a key: where a hash of both
// falls, on a line of length 1.
func (r *rule) inShadow(key string) bool {
	h := uint64(14695981039346656037) // FNV-1a, and then mixed so that its upper bits are good
	for _, s := range [...]string{r.Name, "\x00", key} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return float64((h^h>>33)>>11) < r.Shadow*(1<<53)
}

// A policy is a limit as fields show it, with all that does not change from
// response to response. It knows nothing of keys.
type policy struct {
	rule     *rule
	limits   int // of the rule, which are charged together
	limit    Limit
	name     string // the rule's, or rule/limit
	capacity int64  // the most that can be spent at once

	capacityValue []string
	ietf          []string // "api";q=100;w=60
	draft         []string // 100;w=60
	json          []byte   // the name
	refusal       problem  // the answer if this limit alone refuses
}

// newPolicy prepares a limit. It is shown under the name of the rule alone, or
// under both names.
func newPolicy(r *rule, limits int, alone bool, l Limit) policy {
	p := policy{rule: r, limits: limits, limit: l, name: r.Name}
	if !alone {
		p.name += "/" + l.Name
	}
	p.capacity = l.Capacity()
	p.capacityValue = []string{strconv.FormatInt(p.capacity, 10)}

	window := ""
	if l.Period%time.Second == 0 {
		window = fmt.Sprintf(";"+fields.WindowParam+"=%d", min(l.Period/time.Second, maxInteger))
	}
	item := fmt.Sprintf("%s;"+fields.QuotaParam+"=%d", quoted(p.name), min(l.Quota, maxInteger))
	if r.Unit != fields.Requests {
		item += ";" + fields.UnitParam + "=" + quoted(r.Unit)
	}
	p.ietf = []string{item + window}
	p.draft = []string{fmt.Sprintf("%d%s", l.Quota, window)}
	p.json, _ = json.Marshal(p.name) // a string: it can't fail
	p.refusal = quotaExceeded.violating(p.json)
	return p
}

// maxInteger is the largest Integer of a structured field (RFC 9651, 3.3.1).
const maxInteger = 999_999_999_999_999

// quoted returns a String of a structured field. New has refused names that
// it can't hold.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
