package frameworks

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

// Gorilla returns a handler that echoes messages over gorilla/websocket. It charges each message
// under the keys of the request that opened the connection.
func Gorilla(messages *weir.Limiter) http.HandlerFunc {
	var upgrader websocket.Upgrader
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return // Upgrade has sent a response
		}
		defer conn.Close()
		conn.SetReadLimit(64 << 10)
		for {
			kind, message, err := conn.ReadMessage()
			if err != nil {
				return
			}
			a, err := messages.Admit(r)
			if err != nil {
				text := websocket.FormatCloseMessage(websocket.CloseTryAgainLater, reason(err))
				conn.WriteControl(websocket.CloseMessage, text, time.Now().Add(time.Second))
				return
			}
			err = conn.WriteMessage(kind, message)
			a.Done(weir.Outcome{})
			if err != nil {
				return
			}
		}
	}
}

// reason returns the reason for closing the connection. It is shorter than 123 bytes, the most that
// fits in a close frame.
func reason(err error) string {
	var refused *weir.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter() == quota.Never {
		return "this message is refused"
	}
	return fmt.Sprintf("too many messages, try again in %.0f seconds", math.Ceil(refused.RetryAfter().Seconds()))
}
