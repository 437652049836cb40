//go:build js && wasm && !story

package main

import (
	"context"
	"encoding/json"
	"net/url"
	"syscall/js"

	"github.com/seed83679106/weir/_examples/playground/scene"
)

var (
	open   *scene.Scene
	replay *scene.AccessLog
)

// The functions that try.html and the replay of an access log need as well.
func init() {
	functions["open"] = func(args []js.Value) any { return mistake(openScene(args[0].String())) }
	functions["do"] = func(args []js.Value) any { return mistake(do(args[0].String())) }
	functions["events"] = func([]js.Value) any { return text(open.Events()) }
	functions["answers"] = func(args []js.Value) any { return text(open.Answers(args[0].String())) }
	functions["log"] = func(args []js.Value) any {
		data := make([]byte, args[2].Length())
		js.CopyBytesToGo(data, args[2])
		replay = scene.NewAccessLog(args[0].String(), args[1].String(), data, args[3].Bool())
		return nil
	}
	functions["logStep"] = func(args []js.Value) any {
		lines, more := replay.Step(args[0].Int())
		return []any{lines, more}
	}
	functions["logReport"] = func([]js.Value) any { return string(replay.Report()) }
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
