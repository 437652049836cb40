// Package watch shows operators what limiters are doing.
//
//	recorder, logRefusals := watch.NewRecorder(1000, 100_000), watch.Log(nil, 10, nil)
//	limiter, err := weir.New(store, weir.Options{Rules: rules, Observe: func(e weir.Event) {
//		recorder.Observe(e)
//		logRefusals(e)
//	}})
//
// As in this example, the Observe function of [weir.Options] can call several of the functions
// below.
//
// # Functions
//
// A [Recorder] remembers the keys that are refused most often, bans, recent requests and warnings,
// and package admin displays them. [Log] logs refusals at a bounded rate. [Diagnose] detects likely
// configuration errors. All of these cover only the requests that this process handles.
package watch

import (
	"fmt"

	"github.com/seed83679106/weir"
)

// A Recorder remembers recent decisions of this process:
//
//   - the keys that were refused most often in the last hour, and the latest refusals
//   - the bans that have refused requests
//   - the latest requests, so that Try can test other limits with them, and how many requests of
//     each rule were allowed or refused in the last 15 minutes
//   - warnings about probable misconfigurations that were logged through its LogHandler
//
// It is safe for concurrent use. The zero value is like NewRecorder(1000, 100_000). Each remembered
// key takes about 1 KB of memory, each remembered request 64 bytes, and each rule about 9 KiB.
type Recorder struct {
	top
	bans
	traffic
	warnings
}

// What the zero value of a Recorder remembers.
const defaultKeys, defaultRequests = 1000, 100_000

// NewRecorder returns a Recorder that remembers the given number of keys, refusals and bans, and the
// given number of requests, or fewer requests if keys are longer than 32 bytes on average. A
// request that is charged under two rules counts twice. NewRecorder panics if a number is below 1.
func NewRecorder(keys, requests int) *Recorder {
	if keys < 1 || requests < 1 {
		panic(fmt.Sprintf("watch: NewRecorder: keys is %d, and requests is %d; want at least 1 each", keys, requests))
	}
	r := &Recorder{}
	r.top.init(keys)
	r.bans.init(keys)
	r.traffic.init(requests)
	return r
}

// Observe records the event e. Set weir.Options.Observe to this method, for all limiters whose
// requests are to be recorded.
func (r *Recorder) Observe(e weir.Event) {
	r.top.observe(&e)
	r.bans.observe(&e)
	r.traffic.observe(&e)
}
