//go:build js && wasm

// Wasm runs the library in a browser. It gives the page a global object named weir, which
// has the functions that this package lists. With the tag first it has only what most scenes of the
// story need, and is the smallest, because a reader waits for it: neither encoding/json nor memstore
// is in it. With the tag story it has all that the story needs, and without tags net/http, too.
package main

import (
	"syscall/js"

	"github.com/seed83679106/weir/_examples/playground/scene"
	"github.com/seed83679106/weir/quota"
)

// functions are the functions of the object, by name.
var functions = map[string]func(args []js.Value) any{
	"decide": func(args []js.Value) any { return answer(scene.Decide(question(args[0]))) },
	"key":    func(args []js.Value) any { return scene.Key(args[0].String(), args[1].String(), args[2].String()) },
}

func main() {
	weir := js.Global().Get("Object").New()
	for name, f := range functions {
		weir.Set(name, js.FuncOf(func(_ js.Value, args []js.Value) any { return f(args) }))
	}
	js.Global().Set("weir", weir)
	select {} // the program must not end while the page calls its functions
}

// question returns the Question in an object {now, within, most, charges, states} of the page.
func question(v js.Value) *scene.Question {
	q := &scene.Question{Now: number(v, "now"), Within: number(v, "within"), Most: number(v, "most")}
	charges, states := v.Get("charges"), v.Get("states")
	for i := range charges.Length() {
		c := charges.Index(i)
		q.Charges = append(q.Charges, scene.Charge{
			Algorithm: c.Get("algorithm").String(), Quota: number(c, "quota"), Period: number(c, "period"), Burst: number(c, "burst"),
			Zone: c.Get("zone").Float(), Key: c.Get("key").String(), Cost: number(c, "cost"),
		})
	}
	for i := range states.Length() {
		q.States = append(q.States, state(states.Index(i)))
	}
	return q
}

// number returns a field that is a whole number.
func number(v js.Value, name string) int64 { return int64(v.Get(name).Float()) }

// state returns the State in a list that numbers has made.
func state(list js.Value) quota.State {
	at := func(i int) int64 { return int64(list.Index(i).Float()) }
	s := quota.State{At: at(0), A: at(1), B: at(2), C: at(3)}
	for i := 4; i < list.Length(); i += 2 {
		s.Log = append(s.Log, quota.LogEntry{At: at(i), Sum: at(i + 1)})
	}
	return s
}

// numbers returns a State as a list for the page, which keeps it and gives it to the next question.
func numbers(s quota.State) any {
	list := []any{s.At, s.A, s.B, s.C}
	for _, e := range s.Log {
		list = append(list, e.At, e.Sum)
	}
	return list
}

func answer(r scene.Reply) any {
	decisions, states := []any{}, []any{}
	for _, d := range r.Decisions {
		decisions = append(decisions, map[string]any{"allowed": d.Allowed, "remaining": d.Remaining, "retryAfter": d.RetryAfter, "nextAfter": d.NextAfter, "resetAfter": d.ResetAfter})
	}
	for _, s := range r.States {
		states = append(states, numbers(s))
	}
	return map[string]any{"error": r.Error, "allowed": r.Allowed, "wait": r.Wait, "granted": r.Granted, "decisions": decisions, "states": states}
}
