//go:build js && wasm && !first

package main

import (
	"syscall/js"

	"github.com/seed83679106/weir/_examples/playground/scene"
)

var (
	replicas *scene.Replicas
	outage   *scene.Outage
)

// The functions that the last scenes of the story need as well.
func init() {
	functions["compare"] = func(args []js.Value) any { return string(scene.Compare([]byte(args[0].String()))) }
	functions["fail"] = func(args []js.Value) any {
		outage = scene.NewOutage(args[0].Int(), args[1].String())
		return nil
	}
	functions["stop"] = func(args []js.Value) any {
		outage.Stop(args[0].Bool())
		return nil
	}
	functions["request"] = func(args []js.Value) any {
		status, asked := outage.Request(args[0].Int())
		return []any{status, asked}
	}
	functions["share"] = func(args []js.Value) any {
		replicas = scene.NewReplicas(args[0].Int(), args[1].String())
		return nil
	}
	functions["take"] = func(args []js.Value) any { return string(replicas.Take(args[0].Int(), []byte(args[1].String()))) }
}
