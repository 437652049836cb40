// Package jsonrpc limits JSON-RPC 2.0 requests over HTTP, such as those of MCP clients.
//
//	tool := weir.FirstOf(weir.ByJSON("params.name", 64<<10), weir.ByMethod())
//	limiter, err := weir.New(store, weir.Options{
//		Rules: []weir.Rule{{
//			Name: "tools", Key: weir.Join(weir.ByContext(accountKey{}), tool), Limits: []weir.Limit{algorithms.GCRA(60, time.Minute)},
//			Cost: jsonrpc.Cost(64 << 10),
//		}},
//		OnLimited: jsonrpc.OnLimited(64<<10, jsonrpc.CodeLimited),
//	})
//
// Each request in a batch costs one unit. Refusals are reported as JSON-RPC errors, because clients
// treat an HTTP error status as a failure of the whole connection.
package jsonrpc

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/jsonbody"
	"github.com/seed83679106/weir/internal/recorder"
)

// CodeLimited is the usual JSON-RPC error code for OnLimited. The codes from −32768 to −32000 are
// reserved: the MCP specification of 2026-07-28 defines the codes from −32099 to −32020, none of
// which is for a rate limit.
const CodeLimited = 429

// Cost returns a function for Rule.Cost that charges 1 unit for a single request and 1 unit for
// each element of a batch. The function reads at most the first max bytes of the body, and the
// handler can still read the whole body. A body that begins with "{" costs 1 unit, whatever its
// length, and so does an empty body. Any other body could be a batch of any size, so the request is
// refused if the body is longer than max bytes, cannot be read, or is not valid JSON in UTF-8. A
// request with a Content-Encoding, such as gzip, is also refused. Cost panics if max is below 1.
func Cost(max int64) func(*http.Request) int64 {
	mustBePositive("Cost", max)
	return func(r *http.Request) int64 {
		text := jsonbody.Peek(r, max)
		start := bytes.TrimLeft(text.Head, " \t\r\n")
		switch empty := text.Whole && len(start) == 0; {
		case empty:
			return 1
		case len(r.Header["Content-Encoding"]) > 0:
			return -1
		case len(start) > 0 && start[0] == '{':
			return 1
		}
		value, ok := text.Value()
		switch {
		case !ok:
			return -1
		case value[0] != '[': // neither a request nor a batch, so the server refuses the body
			return 1
		}
		n := int64(0)
		for range jsonbody.Elements(value) {
			n++
		}
		if n == 0 { // an empty batch, which the server refuses too
			n = 1
		}
		return n
	}
}

// OnLimited returns a handler for Options.OnLimited. It responds to a refused request with status
// 200 and a JSON-RPC error that has the request's id, the given code and a readable message. The
// error's data member contains the reason for the refusal. If waiting helps, the data member also
// contains retryAfter, the number of seconds in the Retry-After header field. The response to a
// batch contains one error for each request.
//
// Instead, the handler calls weir.Refuse for a notification (which has no id) and for a batch of
// more than 100 requests. It also calls weir.Refuse if the body is missing (as in an MCP client's
// GET), longer than max bytes, or not JSON-RPC. The handler reads the body before it responds. To
// limit how long reading takes, set ReadTimeout on the server. Do not use OnLimited for a proxy's
// authorization requests (forward auth), because the proxy would allow every request that gets
// status 200. OnLimited panics if max is below 1.
func OnLimited(max int64, code int) http.Handler {
	mustBePositive("OnLimited", max)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ids [][]byte
		body, _ := jsonbody.Peek(r, max).Value()
		batch := len(body) > 0 && body[0] == '['
		switch {
		case len(body) == 0:
		case batch:
			for call := range jsonbody.Elements(body) {
				ids = appendID(ids, call)
			}
		default:
			ids = appendID(ids, body)
		}
		if len(ids) == 0 || len(ids) > mostErrors {
			weir.Refuse(w, r)
			return
		}
		tail := string(errorOf(r, w.Header(), code)) + "}"
		var all []byte
		for i, id := range ids {
			if i > 0 {
				all = append(all, ',')
			}
			all = append(append(append(all, `{"jsonrpc":"2.0","id":`...), id...), `,"error":`+tail...)
		}
		if batch {
			all = append(append([]byte{'['}, all...), ']')
		}
		recorder.SetDeliberate(w)
		answer.WriteJSON(w, http.StatusOK, append(all, '\n'))
	})
}

// mostErrors bounds the length of the response to a batch, which could otherwise be many times as
// long as the batch.
const mostErrors = 100

func mustBePositive(name string, max int64) {
	if max < 1 {
		panic("jsonrpc: " + name + ": max is " + strconv.FormatInt(max, 10) + "; want at least 1")
	}
}

// appendID appends the id of a request if the id is a string, a number or null. It skips a
// client's responses to a server's requests, which have ids but no method.
func appendID(ids [][]byte, call []byte) [][]byte {
	if call[0] != '{' {
		return ids
	}
	id, ok := jsonbody.Member(call, "id")
	method, _ := jsonbody.Member(call, "method")
	if !ok || method == nil || len(id) == 0 || strings.IndexByte(`"-0123456789n`, id[0]) < 0 {
		return ids
	}
	return append(ids, id)
}

// errorOf returns the JSON-RPC error for a refused request. The message is the plain text of
// package weir.
func errorOf(r *http.Request, h http.Header, code int) []byte {
	call := answer.Call{RetryAfter: h.Get(headers.RetryAfter)}
	weir.Refuse(&call, r)
	type data struct {
		Reason     string `json:"reason"`
		RetryAfter int    `json:"retryAfter,omitempty"`
	}
	reason := weir.ReasonLimit
	if a := weir.FromContext(r.Context()); a != nil {
		reason = a.Refusal.Reason
	}
	seconds, _ := strconv.Atoi(call.RetryAfter)
	b, _ := json.Marshal(struct { // this struct can always be marshalled
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    data   `json:"data"`
	}{code, call.Message, data{reason.String(), seconds}})
	return b
}
