package main

import (
	"fmt"
	"os"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// spin is the role of a process that keeps a processor busy until its input ends.
func spin([]string) {
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}()
	for {
	}
}

// stop stops Redis twelve times for 600 ms, while a server gets 2,000 requests a second and allows
// them in an outage. Six other processes keep the processors busy.
func stop(string, string) {
	p := &redistest.Program{}
	defer p.End()
	server := redistest.Server(p)
	for range 6 {
		defer start("spin").end()
	}
	fmt.Println("Redis is stopped for 600 ms, twelve times, next to six busy processes. " +
		"Requests that were refused more than 150 ms later, and when the last of them was; the default is to allow them.")
	fmt.Println("| refused | after 150 ms | the last | let through |\n| --- | --- | --- | --- |")
	f := newFront(server.Addr(), "bare", 0)
	defer f.end()
	f.drive(200, 100, 2000, time.Second)
	for range 12 {
		var began, ended time.Time
		time.AfterFunc(800*time.Millisecond, func() { server.Pause(); began = time.Now() })
		time.AfterFunc(1400*time.Millisecond, func() { ended = time.Now(); server.Resume() })
		a, _ := f.drive(200, 100, 2000, 2*time.Second)
		late, last := 0, time.Duration(0)
		for _, at := range a.RefusedAt {
			if since := time.Unix(0, at).Sub(began); since > 150*time.Millisecond && at < ended.UnixNano() {
				late, last = late+1, max(last, since)
			}
		}
		fmt.Printf("| %d | %d | %v | %d |\n", a.Refused, late, short(last), a.Undecided)
	}
}
