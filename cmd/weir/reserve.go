package main

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	problems "github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
)

// Bounds of reservations.
const (
	usualLife   = 10 * time.Minute
	longestLife = 24 * time.Hour
	mostParts   = 64
	mostUnits   = 1 << 49 // of one part, see quota.ModeForce
	mostClass   = 128     // bytes
	mostKey     = 1024    // bytes
)

// A reservation holds the content of a reservation's id. The id is encrypted with -key-secret, so
// that each replica can settle the reservation and nobody can forge one. The store records only the
// units, and whether the reservation was settled.
type reservation struct {
	Serial string   `json:"s"`
	Rule   string   `json:"r"`
	Key    string   `json:"k"` // whole, for overrides of prefixes
	Class  string   `json:"c,omitempty"`
	Limits []string `json:"l"` // stateOf of all limits under which a part was spent
	Life   int64    `json:"t"` // in seconds
	End    int64    `json:"e"` // Unix time
	Parts  []part   `json:"p"` // what was reserved, and each draw
}

// A part contains units that were spent together. The i-th element of At is the time, on the
// store's clock, at which the units were spent under the i-th limit of the reservation. The element
// is 0 if that limit was not in force at the time, because a reload or an override had changed the
// limits. Limits beyond the end of At were not in force either.
type part struct {
	Units  int64   `json:"n"`
	At     []int64 `json:"a"`
	Memory bool    `json:"m,omitempty"` // this process spent them while Redis was down
}

// stateOf returns the names under which a store counts the units of a limit.
func stateOf(l *quota.Limit) string { return l.StoredName() + "/" + l.Algorithm.Name() }

// spent returns when the units of the part were spent under the i-th limit, or 0 if they were not.
func (p *part) spent(i int) int64 {
	if i < len(p.At) {
		return p.At[i]
	}
	return 0
}

func (v *reservation) units() (n int64) {
	for _, p := range v.Parts {
		n += p.Units
	}
	return n
}

// add adds the units of a transaction. If the transaction was refused under a rule in shadow mode,
// nothing was spent.
func (v *reservation) add(units int64, t *quota.Transaction) {
	p := part{Units: units, Memory: t.FellBack(), At: make([]int64, len(v.Limits), len(v.Limits)+len(t.Charges))}
	for i := 0; t.Allowed() && i < len(t.Charges); i++ {
		name := stateOf(&t.Charges[i].Limit)
		at := slices.Index(v.Limits, name)
		if at < 0 {
			at = len(v.Limits)
			v.Limits, p.At = append(v.Limits, name), append(p.At, 0)
		}
		p.At[at] = t.Decisions[i].At
	}
	v.Parts = append(v.Parts, p)
}

// clockSlack is how much the clocks of replicas and Redis may differ without a reservation being
// settled twice.
const clockSlack = time.Minute

// mark returns the charge that is refused from the second settlement on. Its key has the hash tag of
// the reservation's key, so in a cluster one server has both, unless the reservation's key is long.
func (v *reservation) mark() quota.Charge {
	return quota.Charge{Rule: "weir-settled", Key: storedkey.Of(v.Key) + "}" + v.Serial, Cost: 1,
		Limit: algorithms.AnchoredWindow(1, time.Duration(v.Life)*time.Second+clockSlack)}
}

// reservations serve /reserve, /draw and /settle to programs that are not written in Go.
type reservations struct {
	g     *gateway
	store weir.Store
	count func(weir.Event)
	aead  cipher.AEAD // nil without -key-secret

	outside, secrets *slog.Logger // each logs at most one line a second
}

func newReservations(g *gateway, store weir.Store, count func(weir.Event)) (*reservations, error) {
	v := &reservations{g: g, store: store, count: count, outside: sparse.Logger(g.logger), secrets: sparse.Logger(g.logger)}
	if g.o.keySecret == "" {
		return v, nil
	}
	key := sha256.Sum256([]byte("weir reservations\x00" + g.o.keySecret))
	block, err := aes.NewCipher(key[:])
	if err == nil {
		v.aead, err = cipher.NewGCMWithRandomNonce(block)
	}
	return v, err
}

// A reservationCall is the body of a request.
type reservationCall struct {
	ID      string  `json:"id"`
	Rule    string  `json:"rule"`
	Key     *string `json:"key"`     // required to reserve: without it, all callers would share a quota
	Hashed  bool    `json:"hashed"`  // the key is the digest of one; if false, a rule that hashes keys hashes it
	Class   string  `json:"class"`   // see weir.Rule.Class
	Units   int64   `json:"units"`   // to reserve or to draw
	Used    *int64  `json:"used"`    // to settle; required
	Seconds int64   `json:"seconds"` // until the reservation ends
}

// A refusal is an error that is sent to the caller as a text with a status or, if there is no text,
// as problem details.
type refusal struct {
	status  int
	text    string
	problem problems.Problem
	wait    time.Duration // until another call may succeed; 0 or quota.Never if waiting does not help
}

func (e refusal) Error() string { return e.text }

func fault(status int, format string, args ...any) error {
	return refusal{status: status, text: fmt.Sprintf(format, args...)}
}

// A reservationFunc carries out a call, and returns what the caller gets as JSON.
type reservationFunc func(r *http.Request, c *reservationCall) (any, error)

// handler returns the handler for calls that f executes.
func (v *reservations) handler(f reservationFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		var result any
		c, err := v.read(w, r)
		if err == nil {
			result, err = f(r, c)
		}
		var e refusal
		if err != nil && !errors.As(err, &e) {
			v.g.logger.Warn("weir: reservation not decided", "err", err, "cause", quota.Cause(err))
			e = refusal{problem: problems.ReducedCapacity, wait: time.Second}
		}
		if e.wait > 0 && e.wait != quota.Never {
			w.Header().Set("Retry-After", strconv.FormatInt(period.Seconds(e.wait), 10))
		}
		switch {
		case err == nil:
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(result) // an error means that the caller is gone
		case e.text != "":
			http.Error(w, e.text, e.status)
		default:
			e.problem.Write(w, r, false)
		}
	})
}

// read returns the call in the body of a request. If the sender may not make calls, the result is
// an error.
func (v *reservations) read(w http.ResponseWriter, r *http.Request) (*reservationCall, error) {
	switch {
	case !v.g.trusts(r.RemoteAddr):
		v.outside.Warn("weir: reservation of an address not in trusted-proxies refused", "addr", r.RemoteAddr)
		return nil, fault(http.StatusBadRequest, "your address is not in trusted-proxies")
	case len(r.Header["X-Forwarded-For"])+len(r.Header["Forwarded"]) > 0:
		v.outside.Warn("weir: reservation forwarded by a proxy refused", "addr", r.RemoteAddr,
			"likely", "the proxy forwards requests of clients to -auth-addr")
		return nil, fault(http.StatusBadRequest, "the request has a field of a proxy; call -auth-addr directly")
	case v.aead == nil:
		return nil, fault(http.StatusNotImplemented, "reservations need -key-secret")
	}
	var c reservationCall
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10))
	in.DisallowUnknownFields()
	err := in.Decode(&c)
	if err == nil {
		if _, after := in.Token(); after != io.EOF {
			err = errors.New("there is text after the object")
		}
	}
	if err != nil {
		return nil, fault(http.StatusBadRequest, "the body is not the JSON of a reservation: %v", err)
	}
	return &c, nil
}

// A reservedBody is the answer to /reserve and /draw.
type reservedBody struct {
	ID    string    `json:"id"`
	Units int64     `json:"units"` // of the reservation
	Ends  time.Time `json:"ends"`
}

func (v *reservations) reserve(r *http.Request, c *reservationCall) (any, error) {
	if c.Key == nil {
		return nil, fault(http.StatusBadRequest, `key is missing; want "" for a rule whose requests share one key`)
	}
	if c.Seconds == 0 {
		c.Seconds = int64(usualLife / time.Second)
	}
	if most := int64(longestLife / time.Second); c.Seconds < 1 || c.Seconds > most {
		return nil, fault(http.StatusBadRequest, "seconds is %d; want 1 to %d", c.Seconds, most)
	}
	// If no request can have the key, the reservation would have no effect on requests.
	e, err := overrides.Entry{Key: *c.Key}, error(nil)
	if c.Hashed {
		e, err = v.g.rules.EntryOf(c.Rule, e)
	} else {
		e.Key, err = v.g.rules.KeyOf(c.Rule, e.Key)
	}
	if err != nil {
		return nil, fault(http.StatusBadRequest, "%s", strings.TrimPrefix(err.Error(), "config: "))
	}
	if reads := v.g.rules.Reads(c.Rule); e.Key == "" && len(reads) > 0 && reads[0] != "global" {
		return nil, fault(http.StatusBadRequest, `key is ""; rule %q has other keys`, c.Rule)
	}
	if len(e.Key) > mostKey { // the id has it, and must fit into a call
		return nil, fault(http.StatusBadRequest, "key has %d bytes; want at most %d", len(e.Key), mostKey)
	}
	return v.take(r, c.Units, &reservation{Serial: rand.Text(), Rule: c.Rule, Key: e.Key, Class: c.Class,
		Life: c.Seconds, End: time.Now().Unix() + c.Seconds})
}

func (v *reservations) draw(r *http.Request, c *reservationCall) (any, error) {
	res, err := v.open(c.ID)
	if err != nil {
		return nil, err
	}
	if len(res.Parts) >= mostParts {
		return nil, fault(http.StatusConflict, "%d draws; draw more units at a time", mostParts-1)
	}
	t, err := quota.Peek(r.Context(), v.store, res.mark())
	switch _, rule := v.find(res.Rule); {
	case err == nil && !t.Allowed():
		return nil, fault(http.StatusConflict, "the reservation is settled")
	case err != nil && rule.Enforce.Enforces(res.Rule, res.Key):
		return nil, err
	}
	return v.take(r, c.Units, res)
}

// take spends units under the rule of a reservation, and returns an answer with the id.
func (v *reservations) take(r *http.Request, units int64, res *reservation) (any, error) {
	l, rule := v.find(res.Rule)
	switch {
	case units < 1 || units > mostUnits:
		return nil, fault(http.StatusBadRequest, "units is %d; want 1 to %d", units, int64(mostUnits))
	case l == nil:
		return nil, fault(http.StatusNotFound, "the limits file has no rule %q", res.Rule)
	case len(res.Class) > mostClass: // the id contains the class, and must fit into a call
		return nil, fault(http.StatusBadRequest, "class has %d bytes; want at most %d", len(res.Class), mostClass)
	case res.Class != "" && len(rule.Headroom) == 0:
		return nil, fault(http.StatusBadRequest, "rule %q has no classes", res.Rule)
	}
	inShadow := !rule.Enforce.Enforces(res.Rule, res.Key)
	limits, err := v.limits(r.Context(), l, res, inShadow)
	if err != nil {
		return nil, err
	}
	ctx := context.WithoutCancel(r.Context()) // a client that hangs up has spent the units, too
	t := quota.Transaction{Charges: chargesOf(res, limits, rule.Headroom[res.Class], units)}
	if len(limits) > 0 {
		err = v.store.Take(ctx, &t)
	}
	switch {
	case err != nil && !inShadow:
		return nil, err
	case err != nil:
		t = quota.Transaction{} // nothing is known to be spent
	}
	e := weir.Event{Request: r, Transaction: &t, Shadow: inShadow, Err: err}
	if !t.Allowed() {
		e.Refusal, e.Key = weir.Refusal{Reason: weir.ReasonLimit, Rule: res.Rule, RetryAfter: t.RetryAfter()}, storedkey.Of(res.Key)
	}
	v.count(e)
	if !t.Allowed() && !inShadow {
		return nil, refusal{problem: problems.QuotaExceeded.WithStatus(rule.Status), wait: t.RetryAfter()}
	}
	res.add(units, &t)
	id, err := v.seal(res)
	return reservedBody{id, res.units(), time.Unix(res.End, 0).UTC()}, err
}

// chargesOf returns the charges that spend units for a reservation and leave the given percentage of each
// limit unused.
func chargesOf(res *reservation, limits []quota.Limit, percent int, units int64) (charges []quota.Charge) {
	for _, l := range limits {
		charges = append(charges, quota.Charge{Rule: res.Rule, Key: res.Key, Limit: l, Cost: units, Headroom: l.Headroom(percent)})
	}
	return charges
}

// limits returns the limits of the key of a reservation, or no limits if the key is not limited. If
// the key is denied or banned, limits returns an error, unless the rule is in shadow mode.
func (v *reservations) limits(ctx context.Context, l *weir.Limiter, res *reservation, inShadow bool) ([]quota.Limit, error) {
	p, err := l.PolicyOf(res.Rule, res.Key)
	switch {
	case err != nil:
		return nil, err
	case p.Is(weir.Denied()) && !inShadow:
		return nil, fault(http.StatusForbidden, "the key is denied")
	case p.Is(weir.Unlimited()), p.Is(weir.Allowed()), p.Is(weir.Denied()):
		return nil, nil
	case len(p.Limits()) == 0:
		return nil, fault(http.StatusConflict, "the limits of rule %q depend on the request", res.Rule)
	}
	if inShadow {
		return p.Limits(), nil
	}
	left, err := l.Banned(ctx, res.Rule, res.Key)
	if err == nil && left > 0 {
		err = refusal{status: http.StatusTooManyRequests, text: "the key is banned", wait: left}
	}
	return p.Limits(), err
}

// A settledBody is the answer to /settle.
type settledBody struct {
	Charged *int64 `json:"charged,omitempty"` // units; only of the first settlement
	First   bool   `json:"first"`             // false if the reservation was settled before
}

// settle replaces the units of a reservation with the units that were used. Only the first
// settlement counts: the transaction that makes its first refunds also marks the reservation as
// settled.
func (v *reservations) settle(r *http.Request, c *reservationCall) (any, error) {
	res, err := v.open(c.ID)
	switch {
	case err != nil:
		return nil, err
	case c.Used == nil:
		return nil, fault(http.StatusBadRequest, "used is missing; want 0 to %d", int64(mostUnits))
	case *c.Used < 0 || *c.Used > mostUnits:
		return nil, fault(http.StatusBadRequest, "used is %d; want 0 to %d", *c.Used, int64(mostUnits))
	}
	ctx := context.WithoutCancel(r.Context())
	t, err := quota.Peek(ctx, v.store, res.mark())
	if err != nil {
		return nil, err
	}
	memory := t.FellBack()
	if memory && slices.ContainsFunc(res.Parts, func(p part) bool { return !p.Memory }) {
		// The store in memory does not know whether the reservation is settled, and has none
		// of its units.
		return nil, fault(http.StatusServiceUnavailable, "Redis is down; settle again later")
	}
	refunds, debts := v.settlement(res, *c.Used, memory)
	first := quota.Transaction{Charges: append([]quota.Charge{res.mark()}, refunds[0]...)}
	if err := v.store.Take(ctx, &first); err != nil || !first.Allowed() {
		return settledBody{}, err
	}
	var errs []error
	for _, charges := range refunds[1:] {
		if len(charges) > 0 {
			errs = append(errs, v.store.Take(ctx, &quota.Transaction{Charges: charges}))
		}
	}
	if len(debts) > 0 {
		errs = append(errs, v.store.Take(ctx, &quota.Transaction{Charges: debts, Mode: quota.ModeForce}))
	}
	return settledBody{Charged: c.Used, First: true}, errors.Join(errs...)
}

// settlement returns the refunds of a settlement, by part and from the newest part on, and the
// charges for units beyond the reservation. The refunds release all units in flight, and omit units
// that were spent in another store.
func (v *reservations) settlement(res *reservation, used int64, memory bool) (refunds [][]quota.Charge, debts []quota.Charge) {
	refunds = make([][]quota.Charge, max(1, len(res.Parts)))
	l, _ := v.find(res.Rule)
	if l == nil {
		return refunds, nil
	}
	p, _ := l.PolicyOf(res.Rule, res.Key)
	rest := res.units() - used
	for i, name := range res.Limits {
		at := slices.IndexFunc(p.Limits(), func(l quota.Limit) bool { return stateOf(&l) == name })
		if at < 0 {
			continue // the file has changed
		}
		charge := quota.Charge{Rule: res.Rule, Key: res.Key, Limit: p.Limits()[at]}
		left := rest
		if charge.Limit.InFlight() {
			left = res.units()
		}
		for j := range res.Parts {
			part := &res.Parts[len(res.Parts)-1-j]
			if n := min(left, part.Units); n > 0 {
				if charge.Cost, charge.Spent, charge.FellBack = -n, part.spent(i), part.Memory; charge.Spent > 0 && part.Memory == memory {
					refunds[j] = append(refunds[j], charge)
				}
				left -= n
			}
		}
		if left < 0 {
			charge.Cost, charge.Spent, charge.FellBack = -left, 0, false
			debts = append(debts, charge)
		}
	}
	return refunds, debts
}

// find returns the rule with the given name, and its limiter, or nil if there is no such rule.
func (v *reservations) find(name string) (*weir.Limiter, weir.Rule) {
	for _, rule := range v.g.rules.Rules() {
		if rule.Name == name && len(v.g.rules.Limiters()) > 0 {
			return v.g.rules.Limiters()[0], rule // this limiter has all rules: see openRules
		}
	}
	return nil, weir.Rule{}
}

func (v *reservations) seal(res *reservation) (id string, err error) {
	text, err := json.Marshal(res)
	return base64.RawURLEncoding.EncodeToString(v.aead.Seal(nil, nil, text, nil)), err
}

// open returns the reservation that an id contains.
func (v *reservations) open(id string) (*reservation, error) {
	sealed, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil || len(sealed) < v.aead.Overhead() {
		return nil, fault(http.StatusNotFound, "there is no such reservation")
	}
	text, err := v.aead.Open(nil, nil, sealed, nil)
	if err != nil {
		v.secrets.Warn("weir: id of a reservation not readable", "likely", "replicas have different values of -key-secret",
			"fix", "give all processes that share Redis the same -key-secret")
		return nil, fault(http.StatusNotFound, "there is no such reservation, or another -key-secret has made it")
	}
	var res reservation
	if err := json.Unmarshal(text, &res); err != nil {
		return nil, err
	}
	if time.Now().Unix() >= res.End {
		return nil, fault(http.StatusGone, "the reservation has ended; its units stay charged")
	}
	return &res, nil
}
