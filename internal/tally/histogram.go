package tally

import (
	"sync/atomic"
	"time"
)

// A Histogram counts durations.
type Histogram struct {
	bounds []float64
	upTo   []time.Duration // the bounds as durations
	counts []atomic.Int64
	sum    atomic.Int64 // ns
}

// NewHistogram returns a Histogram with upper bounds in seconds, which must ascend.
func NewHistogram(bounds []float64) *Histogram {
	h := &Histogram{bounds: bounds, counts: make([]atomic.Int64, len(bounds)+1)}
	for _, b := range bounds {
		h.upTo = append(h.upTo, time.Duration(b*1e9+.5))
	}
	return h
}

// Observe counts d.
func (h *Histogram) Observe(d time.Duration) {
	i := 0
	for i < len(h.upTo) && d > h.upTo[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(d))
}

// Read returns the number of durations, their sum in seconds, and for each bound how many
// durations do not exceed the bound.
func (h *Histogram) Read() (n uint64, sum float64, upTo map[float64]uint64) {
	sum, upTo = time.Duration(h.sum.Load()).Seconds(), make(map[float64]uint64, len(h.bounds))
	for i, b := range h.bounds {
		n += uint64(h.counts[i].Load())
		upTo[b] = n
	}
	return n + uint64(h.counts[len(h.bounds)].Load()), sum, upTo
}
