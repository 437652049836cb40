package quota

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A watch finds out which cached decisions may be out of date because another process has changed a
// state: see the interface tracker.
//
// Each key has a version, which changes when the store reports a change of the key. A decision is
// cached with the version that the key had before the call to the store. The order in which answers
// and reports arrive therefore does not matter.
type watch struct {
	log      *slog.Logger
	seed     maphash.Seed
	start    time.Time // instants are in µs since start
	takeEach func(ts []*Transaction) []error

	lease   atomic.Pointer[lease]
	slots   [1 << 15]atomic.Uint64 // the index is the hash of a key: see slot
	quiet   atomic.Int64           // after a failure, the instant before which the store must not be called
	changes atomic.Int64           // how many changes the store has reported
	peeks   atomic.Int64           // how many peeks the store has evaluated
	silent  atomic.Bool            // a line was logged that the store does not report changes

	mu      sync.Mutex
	pending []*peek
	running bool // a goroutine is calling the store for the pending peeks
}

const (
	// A call that makes the store report changes is worthwhile if a decision is at least watchAfter
	// old and still valid for at least watchLeast.
	watchAfter = 100 * time.Millisecond
	watchLeast = time.Second

	// For this time after the call to the store, a watched decision is used without proof that all
	// changes so far have been reported. It is longer than the time between two proofs.
	unproven = 3 * time.Second

	mostPeeks   = 128   // maximum number of peeks in one call to the store
	mostPending = 4_096 // maximum number of peeks that wait for a call
)

// A slot has three parts. The low 16 bits are the version of the keys whose hashes select the slot.
// The next 4 bits count, up to 5, the changes that came shortly after the previous change. The
// remaining bits are the time of the last change, in ms.
type slot uint64

func (s slot) version() uint16 { return uint16(s) }
func (s slot) level() uint64   { return uint64(s) >> 16 & 15 }
func (s slot) last() int64     { return int64(s >> 20) }

// rest returns the time, in ms, before which a key that has changed is not watched again: 100 ms
// after a single change, and up to 3.2 s after the last of several changes in quick succession.
func (s slot) rest() int64 { return s.last() + watchAfter.Milliseconds()<<s.level() }

// A lease determines how long decisions may be used that a store has made while tracking changes.
type lease struct {
	proven int64 // all changes before this instant have been reported
	lost   int64 // when the store last lost track; changes of states that it had evaluated before are no longer reported

	provenThen, lostBefore int64 // the values of proven and lost just before that loss
}

// A peek contains a charge that the store is to evaluate and whose state it is to watch.
type peek struct {
	t       Transaction
	key     uint64 // the hash of the key
	version uint16
	sent    int64      // when the store was called
	place   blockPlace // the place of the block; if there is no block, the shard is nil
	done    func(p *peek, answered int64)
}

// trackerOf returns the tracker that makes the decisions of a store, or nil if there is none.
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

// The store calls changed when a key may have changed, or with all set to true if any key may have
// changed.
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

// The store calls current with a time before which it has reported all changes. The zero Time means
// that the store has lost track.
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

// isUsable reports whether a watched decision may still be used. The store was called at the
// instant sent. From then on, the decision may be used for 3 s (unproven). After that, it may be
// used as long as the last proof that all changes were reported is younger than 10 s (recheck)
// minus spread. If the store has lost track since the call, only proofs from before that loss
// count.
func (l *lease) isUsable(sent, now, spread int64) bool {
	switch {
	case now < sent+unproven.Microseconds():
		return true
	case sent > l.lost:
		return now < l.proven+recheck.Microseconds()-spread
	}
	return sent > l.lostBefore && now < l.provenThen+recheck.Microseconds()-spread
}

// mayRefuse reports whether the block b may refuse the charge c. The caller has checked that b has
// the current version of the key. If a call is worthwhile, mayRefuse also makes the store watch the
// state.
func (h *HybridStore) mayRefuse(b *block, s *blockShard, c *Charge, t *Transaction, key uint64, now int64) bool {
	w, sent := h.watch, b.sent()
	from := sent + watchAfter.Microseconds()
	if b.is(watched) {
		if now < sent+unproven.Microseconds() {
			return true
		}
		l := w.lease.Load()
		if !l.isUsable(sent, now, b.spread(recheck-unproven)) {
			return false
		}
		if sent > l.lost {
			return true
		}
		// Do not watch all of these states again at the same time. Begin with those whose blocks
		// expire first.
		from = l.lost + recheck.Microseconds()/4 - b.spread(recheck/4)
	}
	if b.is(tried) || now < from || b.until() < now+watchLeast.Microseconds() {
		return true
	}
	if !waitsInQueue(c, t.Within) && w.ready(key, now) && s.try(b.id) {
		peeked := Transaction{Charges: []Charge{*c}, Mode: ModePeek}
		w.add(&peek{t: peeked, key: key, place: blockPlace{shard: s, id: b.id}, done: h.confirm})
	}
	return true
}

// ready reports whether the store should be called to watch a key.
func (w *watch) ready(key uint64, now int64) bool {
	return now >= w.quiet.Load() && (w.slot(key).version() == 0 || now/1000 >= w.slot(key).rest())
}

// add makes the store evaluate the charge of p and watch its state. If too many peeks are pending,
// add does nothing.
func (w *watch) add(p *peek) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) >= mostPending {
		return
	}
	p.t.Charges[0].Key = strings.Clone(p.t.Charges[0].Key)
	w.pending = append(w.pending, p)
	if !w.running {
		w.running = true
		go w.run()
	}
}

// run calls the store for the pending peeks until none is left.
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
			p.place.dropCount = s.dropped()
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
			continue // the block is not watched, and is not tried again
		}
		pause := time.Second
		if errors.Is(errs[i], errors.ErrUnsupported) {
			pause = time.Minute
			if !w.silent.Swap(true) {
				level := slog.LevelInfo
				if errors.Is(errs[i], ErrUnusable) { // an operator can fix the setup
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

// confirm replaces a block with one for the decision that the store has just made.
func (h *HybridStore) confirm(p *peek, now int64) {
	d, c := &p.t.Decisions[0], &p.t.Charges[0]
	if d.Allowed {
		p.place.shard.drop(p.place.id)
		return
	}
	hash := hashOf(p.t.plan(0).hash(h.seed), c, 0)
	b, ok := newBlock(d, hash, p.t.At.UnixMicro()-now-h.wall, p.sent, now, p.version, watched)
	if ok && d.RetryAfter != Never {
		b.id = p.place.id
		p.place.shard.keep(b, p.place.dropCount)
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
			return w.version(key) == p.version && w.lease.Load().isUsable(p.sent, w.now(), 0)
		})
	}})
	return true
}
