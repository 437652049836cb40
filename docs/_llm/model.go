package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/seed83679106/weir"
)

// NewModel streams the answers of your own model, and stops when the tokens are used up.
func NewModel(requests, tokens *weir.Limiter, generate func(r *http.Request) []string) http.Handler {
	return requests.Handler(tokens.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(text string, finish any) {
			chunk, _ := json.Marshal(map[string]any{"object": "chat.completion.chunk", "choices": []any{
				map[string]any{"index": 0, "delta": map[string]string{"content": text}, "finish_reason": finish},
			}})
			fmt.Fprintf(w, "data: %s\n\n", chunk)
			_ = http.NewResponseController(w).Flush()
		}
		sent, finish := int64(0), "stop"
		defer func() { weir.ReportUsage(r.Context(), "micro-dollars", sent*priceOf("").output) }() // also after a panic
		for _, token := range generate(r) {
			if n, _ := weir.Draw(r.Context(), "tokens", 1); n == 0 {
				finish = "length"
				break
			}
			sent++
			send(token, nil)
		}
		send("", finish)
		fmt.Fprint(w, "data: [DONE]\n\n")
	})))
}
