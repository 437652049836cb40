package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A watch finds out which remembered decisions of a store may be out of date because another
// process has changed a state: see the interface tracker.
//
// A decision is remembered with the version of its key, which was read before the store was called.
// If the store reports a change of the key, its version changes. The order in which answers and
// reports arrive therefore does not matter.
type watch struct {
	log      *slog.Logger
	seed     maphash.Seed
	start    time.Time // instants are µs since start
	takeEach func(ts []*Transaction) []error

	lease   atomic.Pointer[lease]
	slots   [1 << 15]atomic.Uint64 // by the hash of a key: see slot
	quiet   atomic.Int64           // do not call the store before this instant, because it has failed
	changes atomic.Int64           // how many the store has reported
	peeks   atomic.Int64           // how many decisions it has made
	silent  atomic.Bool            // it was logged that the store reports nothing

	mu      sync.Mutex
	pending []*peek
	running bool // a goroutine calls the store for pending
}

const (
	// It is worthwhile to call the store to make it report changes if a decision is at least
	// watchAfter old and is still valid for at least watchLeast.
	watchAfter = 100 * time.Millisecond
	watchLeast = time.Second

	// unproven is the maximum time for which a watched decision is used without proof that all
	// changes so far have been reported. It is longer than the time between two proofs.
	unproven = 3 * time.Second

	mostPeeks   = 128   // in one call of the store
	mostPending = 4_096 // that wait for one
)

// A slot has three parts. The low 16 bits are the version of the keys whose hashes select the slot.
// The next 4 bits count, up to 5, the changes that came shortly after the previous change. The
// remaining bits are the time of the last change, in ms.
type slot uint64

func (s slot) version() uint16 { return uint16(s) }
func (s slot) level() uint64   { return uint64(s) >> 16 & 15 }
func (s slot) last() int64     { return int64(s >> 20) }

// A key that has changed is not watched again before a time, in ms, that rest returns. This is 100
// ms after the change, or up to 3.2 s after the last of several changes in quick succession.
func (s slot) rest() int64 { return s.last() + watchAfter.Milliseconds()<<s.level() }

// A lease determines how long decisions may be used that a store made while it tracked changes.
type lease struct {
	proven int64 // all changes before this instant have been reported
	lost   int64 // when the store last lost track: it does not report later changes of states that it evaluated before

	provenThen, lostBefore int64 // the same at the time of that loss
}

// A peek contains a charge that the store must evaluate and whose state it must watch.
type peek struct {
	t       Transaction
	key     uint64 // the hash of the key
	version uint16
	sent    int64      // when the store was called
	place   blockPlace // of the block; its shard is nil if there is none
	done    func(p *peek, answered int64)
}

// trackerOf returns the tracker whose decisions a store returns, or nil.
func trackerOf(s Store) tracker {
	for {
		switch x := s.(type) {
		case *BreakerStore:
			s = x.next
		case *CoalescedStore:
			s = x.next
		default:
			t, _ := s.(tracker)
			return t
		}
	}
}

// newWatch returns nil if the store does not track changes.
func newWatch(next Store, h *HybridStore, log *slog.Logger) *watch {
	t := trackerOf(next)
	if t == nil {
		return nil
	}
	w := &watch{log: log, seed: h.seed, start: h.start}
	w.lease.Store(&lease{lost: -1, lostBefore: -1})
	if w.takeEach = t.Track(w.changed, w.current); w.takeEach == nil {
		return nil
	}
	return w
}

func (w *watch) now() int64 { return time.Since(w.start).Microseconds() }

func (w *watch) slot(key uint64) slot { return slot(w.slots[key%uint64(len(w.slots))].Load()) }

// version returns the version of the key with the given hash, or 0 if w is nil.
func (w *watch) version(key uint64) uint16 {
	if w == nil {
		return 0
	}
	return w.slot(key).version()
}

// The store calls changed when a key may have changed. If its argument all is true, any key may
// have changed.
func (w *watch) changed(key string, all bool) {
	defer w.changes.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	i := maphash.String(w.seed, key) % uint64(len(w.slots))
	slots := w.slots[i : i+1]
	if all {
		slots = w.slots[:]
	}
	now := w.now() / 1000
	for i := range slots {
		s := slot(slots[i].Load())
		level := uint64(0)
		if !all && s.version() != 0 && now < s.last()+recheck.Milliseconds() {
			level = min(s.level()+1, 5)
		}
		slots[i].Store(uint64(now)<<20 | level<<16 | uint64(s.version()+1))
	}
}

// The store calls current when it has reported all changes before the time in the argument. The
// zero Time means that it has lost track.
func (w *watch) current(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := *w.lease.Load()
	if at.IsZero() {
		l.lostBefore, l.provenThen, l.lost = l.lost, l.proven, w.now()
	} else {
		l.proven = at.Sub(w.start).Microseconds()
	}
	w.lease.Store(&l)
}

// counts reports whether a watched decision may still be used. The store was called for it at the
// instant sent. The decision may be used for 3 s (unproven). After that, it may be used as long as
// the last proof that the store has reported all changes is less than 10 s (recheck), minus the
// argument spread, old. If the store has lost track since the call, what counts is the last proof
// before it did.
func (l *lease) counts(sent, now, spread int64) bool {
	switch {
	case now < sent+unproven.Microseconds():
		return true
	case sent > l.lost:
		return now < l.proven+recheck.Microseconds()-spread
	}
	return sent > l.lostBefore && now < l.provenThen+recheck.Microseconds()-spread
}

// counts reports whether the block b may refuse the charge c. The caller has checked that b has the
// version of the key. If the state is worth a call, the function counts makes the store watch it.
func (h *HybridStore) counts(b *block, s *blocks, c *Charge, t *Transaction, key uint64, now int64) bool {
	w, sent := h.watch, b.sent()
	from := sent + watchAfter.Microseconds()
	if b.is(watched) {
		if now < sent+unproven.Microseconds() {
			return true
		}
		l := w.lease.Load()
		if !l.counts(sent, now, b.spread(recheck-unproven)) {
			return false
		}
		if sent > l.lost {
			return true
		}
		// Do not watch all of these states again at once; begin with those whose blocks expire
		// first.
		from = l.lost + recheck.Microseconds()/4 - b.spread(recheck/4)
	}
	if b.is(tried) || now < from || b.until() < now+watchLeast.Microseconds() {
		return true
	}
	if _, queue := hashOf(0, c, t.Within); !queue && w.ready(key, now) && s.try(b.id) {
		peeked := Transaction{Charges: []Charge{*c}, Mode: ModePeek}
		w.add(&peek{t: peeked, key: key, place: blockPlace{shard: s, id: b.id}, done: h.confirm})
	}
	return true
}

// ready reports whether the store should be called to watch a key.
func (w *watch) ready(key uint64, now int64) bool {
	return now >= w.quiet.Load() && (w.slot(key).version() == 0 || now/1000 >= w.slot(key).rest())
}

// add makes the store evaluate p and watch its state. If too many peeks are pending, it does
// nothing.
func (w *watch) add(p *peek) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) >= mostPending {
		return
	}
	p.t.Charges[0].Key = string(append([]byte(nil), p.t.Charges[0].Key...))
	w.pending = append(w.pending, p)
	if !w.running {
		w.running = true
		go w.run()
	}
}

// run calls the store for the pending peeks, until there are none.
func (w *watch) run() {
	for {
		w.mu.Lock()
		n := min(len(w.pending), mostPeeks)
		batch := slices.Clone(w.pending[:n])
		w.pending = slices.Delete(w.pending, 0, n)
		w.running = n > 0
		w.mu.Unlock()
		if n == 0 {
			return
		}
		w.call(batch)
	}
}

func (w *watch) call(batch []*peek) {
	ts := make([]*Transaction, len(batch))
	sent := w.now()
	for i, p := range batch {
		ts[i], p.sent, p.version = &p.t, sent, w.version(p.key)
		if s := p.place.shard; s != nil {
			p.place.drops = s.dropped()
		}
	}
	errs := w.takeEach(ts)
	now := w.now()
	for i, p := range batch {
		if errs == nil || errs[i] == nil {
			w.peeks.Add(1)
			p.done(p, now)
			continue
		}
		if errors.Is(errs[i], ErrBusy) {
			continue // the block is not watched
		}
		pause := time.Second
		if errors.Is(errs[i], errors.ErrUnsupported) {
			pause = time.Minute
			if !w.silent.Swap(true) {
				level := slog.LevelInfo
				if errors.Is(errs[i], ErrUnusable) { // somebody may fix the setup
					level = slog.LevelWarn
				}
				loggerOr(w.log).Log(context.Background(), level, "quota: the store does not report changes",
					"err", errs[i], "effect", "a refusal that another process ends may last up to 10 s longer")
			}
		}
		w.quiet.Store(now + pause.Microseconds())
		if s := p.place.shard; s != nil {
			s.retry(p.place.id)
		}
	}
}

// confirm replaces a block with the decision that the store has just made.
func (h *HybridStore) confirm(p *peek, now int64) {
	d, c := &p.t.Decisions[0], &p.t.Charges[0]
	if d.Allowed {
		p.place.shard.drop(p.place.id)
		return
	}
	hash, _ := hashOf(p.t.plan(0).hash(h.seed), c, 0)
	b, ok := newBlock(d, hash, p.t.At.UnixMicro()-now-h.wall, p.sent, now, p.version, watched)
	if ok && d.RetryAfter != Never {
		b.id = p.place.id
		p.place.shard.keep(b, p.place.drops)
	}
}

// Watch implements optional.Watcher, if the wrapped store is an optional.Tracker.
func (h *HybridStore) Watch(c Charge, done func(d Decision, current func() bool)) bool {
	w := h.watch
	if w == nil {
		return false
	}
	t := Transaction{Charges: []Charge{c}, Mode: ModePeek}
	key := h.hashKey(c.Key)
	if t.Validate() != nil || !w.ready(key, w.now()) {
		return false
	}
	w.add(&peek{t: t, key: key, done: func(p *peek, _ int64) {
		done(p.t.Decisions[0], func() bool {
			return w.version(key) == p.version && w.lease.Load().counts(p.sent, w.now(), 0)
		})
	}})
	return true
}
