package frameworks

import (
	"net/http"

	"github.com/coder/websocket"

	"github.com/seed83679106/weir"
)

// Coder returns a handler that does with coder/websocket what Gorilla does with gorilla/websocket.
func Coder(messages *weir.Limiter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // Accept has answered
		}
		defer conn.CloseNow()
		conn.SetReadLimit(64 << 10)
		for {
			kind, message, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			a, err := messages.Admit(r)
			if err != nil {
				conn.Close(websocket.StatusTryAgainLater, reason(err))
				return
			}
			err = conn.Write(r.Context(), kind, message)
			a.Done(weir.Outcome{})
			if err != nil {
				return
			}
		}
	}
}
