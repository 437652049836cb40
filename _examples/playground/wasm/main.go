//go:build js && wasm

// Wasm runs the library in a browser. It gives the page a global object named weir, which
// has the functions that main lists.
package main

import (
	"context"
	"encoding/json"
	"net/url"
	"syscall/js"

	"github.com/seed83679106/weir/_examples/playground/scene"
)

var (
	replicas *scene.Replicas
	outage   *scene.Outage
	open     *scene.Scene
	replay   *scene.AccessLog
)

func main() {
	functions := map[string]func(args []js.Value) any{
		"decide":  func(args []js.Value) any { return string(scene.Decide([]byte(args[0].String()))) },
		"compare": func(args []js.Value) any { return string(scene.Compare([]byte(args[0].String()))) },
		"key":     func(args []js.Value) any { return scene.Key(args[0].String(), args[1].String(), args[2].String()) },
		"fail": func(args []js.Value) any {
			outage = scene.NewOutage(args[0].Int(), args[1].String())
			return nil
		},
		"stop": func(args []js.Value) any {
			outage.Stop(args[0].Bool())
			return nil
		},
		"request": func(args []js.Value) any {
			status, asked := outage.Request(args[0].Int())
			return []any{status, asked}
		},
		"share": func(args []js.Value) any {
			replicas = scene.NewReplicas(args[0].Int(), args[1].String())
			return nil
		},
		"take":   func(args []js.Value) any { return string(replicas.Take(args[0].Int(), []byte(args[1].String()))) },
		"open":   func(args []js.Value) any { return mistake(openScene(args[0].String())) },
		"do":     func(args []js.Value) any { return mistake(do(args[0].String())) },
		"events": func([]js.Value) any { return text(open.Events()) },
		"log": func(args []js.Value) any {
			data := make([]byte, args[2].Length())
			js.CopyBytesToGo(data, args[2])
			replay = scene.NewAccessLog(args[0].String(), args[1].String(), data, args[3].Bool())
			return nil
		},
		"logStep": func(args []js.Value) any {
			lines, more := replay.Step(args[0].Int())
			return []any{lines, more}
		},
		"logReport": func([]js.Value) any { return string(replay.Report()) },
		"answers": func(args []js.Value) any {
			return text(open.Answers(args[0].String()))
		},
	}
	weir := js.Global().Get("Object").New()
	for name, f := range functions {
		weir.Set(name, js.FuncOf(func(_ js.Value, args []js.Value) any { return f(args) }))
	}
	js.Global().Set("weir", weir)
	select {} // the program must not end while the page calls its functions
}

func openScene(query string) error {
	link, err := url.ParseQuery(query)
	if err != nil {
		return err
	}
	s, err := scene.New(context.Background(), "page", link, nil)
	if err == nil {
		open = s
	}
	return err
}

func do(form string) error {
	values, err := url.ParseQuery(form)
	if err != nil {
		return err
	}
	return open.Do(values)
}

// mistake returns the text of err, or an empty string if err is nil.
func mistake(err error) any {
	if err == nil {
		return ""
	}
	return err.Error()
}

func text(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible: these are structs of numbers and strings
	}
	return string(data)
}
