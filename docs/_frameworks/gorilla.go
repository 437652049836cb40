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

// Gorilla returns a handler that echoes messages over gorilla/websocket. Each message is charged
// under the keys of the request that has opened the connection.
func Gorilla(messages *weir.Limiter) http.HandlerFunc {
	var upgrader websocket.Upgrader
	return func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return // Upgrade has answered
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

// reason tells the client why the connection is closed, in less than the 123 bytes that a close frame
// has room for.
func reason(err error) string {
	var refused *weir.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter() == quota.Never {
		return "this message is refused"
	}
	return fmt.Sprintf("too many messages, try again in %.0f seconds", math.Ceil(refused.RetryAfter().Seconds()))
}
