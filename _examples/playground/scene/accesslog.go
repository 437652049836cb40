//go:build !story

package scene

import (
	"bytes"
	"io"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/accesslog"
)

// MaxLines is how many lines of an access log the page reads at most.
const MaxLines = 100_000

// An AccessLog replays the access log of the reader through one limit of each client address.
type AccessLog struct {
	replay *accesslog.Replay
	lines  int
	cut    bool
	err    error
}

// NewAccessLog begins to replay a log. The link has the quota, the period and the burst of the
// limit. If cut is true, the end of the log is missing.
func NewAccessLog(algorithm, link string, log []byte, cut bool) *AccessLog {
	a := &AccessLog{cut: cut}
	set, err := parseLink(link)
	k := kindOf(algorithm)
	if a.err = err; err != nil || k == nil {
		return a
	}
	rule := weir.Rule{Name: "client", Key: weir.ByIP(), Limits: []weir.Limit{k.limitOf(&set)}}
	if a.err = rule.Validate(); a.err != nil {
		return a
	}
	a.replay = accesslog.New(accesslog.Options{Rules: []weir.Rule{rule}, Reads: func(string) []string { return []string{"ip"} }, MaxKeys: MaxLines})
	a.err = a.replay.Open(bytes.NewReader(log))
	return a
}

// Step reads up to n further lines. It returns how many lines were read so far, and whether there
// are more.
func (a *AccessLog) Step(n int) (lines int, more bool) {
	if a.err != nil || a.replay == nil {
		return a.lines, false
	}
	n = min(n, MaxLines-a.lines)
	more, a.err = a.replay.Next(n)
	if a.cut && a.err == io.ErrUnexpectedEOF { // of a compressed log
		a.err = nil
	}
	a.lines += n
	if a.lines >= MaxLines && more {
		a.cut, more = true, false
	}
	return a.lines, more
}

// A Replayed says what a limit makes of a log. Times are texts, in the zone of the log.
type Replayed struct {
	Error    string          `json:"error,omitempty"`
	Requests int64           `json:"requests"`
	Refused  int64           `json:"refused"`
	From     string          `json:"from"`
	To       string          `json:"to"`
	First    string          `json:"first"` // the first and the last refusal, if there are any
	Last     string          `json:"last"`
	Top      []accesslog.Key `json:"top"` // the addresses that were refused most
	Notes    []string        `json:"notes"`
	Cut      bool            `json:"cut"` // the log has more lines than were read
}

// Report returns a Replayed in JSON.
func (a *AccessLog) Report() []byte {
	if a.err != nil || a.replay == nil {
		return reply(Replayed{Error: a.text()})
	}
	r, err := a.replay.Report()
	a.err = err
	v := Replayed{Error: a.text(), Requests: r.Requests, Refused: r.Refused, Notes: r.Notes(), Cut: a.cut}
	if r.Requests > 0 {
		v.From, v.To = accesslog.FormatTime(r.From), accesslog.FormatTime(r.To)
	}
	if r.Refused > 0 {
		v.First, v.Last, v.Top = accesslog.FormatTime(r.Rules[0].First), accesslog.FormatTime(r.Rules[0].Last), r.Rules[0].Top
	}
	return reply(v)
}

func (a *AccessLog) text() string {
	if a.err != nil {
		return a.err.Error()
	}
	if a.replay == nil {
		return "there is no such algorithm"
	}
	return ""
}
