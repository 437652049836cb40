package frameworks

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/seed83679106/weir"
)

// Gin returns a middleware for gin. admit is Limiter.Admit, or the result of config.File.Admit.
func Gin(admit func(*http.Request) (*weir.Admission, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		r, body := c.Request, c.Request.Body
		r.Pattern = c.FullPath() // for weir.ByRoute
		for _, p := range c.Params {
			r.SetPathValue(p.Key, p.Value) // for weir.ByPathValue
		}
		a, err := admit(r)
		var refused *weir.RefusedError
		if errors.As(err, &refused) {
			refused.Admission.WriteHeaders(c.Writer.Header())
			weir.Refuse(c.Writer, r.WithContext(refused.Admission.Context()))
			c.Abort()
			return
		}
		if err != nil { // the client has hung up while it waited
			c.AbortWithStatus(http.StatusServiceUnavailable)
			return
		}
		o := weir.Outcome{Panicked: true, Header: c.Writer.Header()}
		defer func() {
			r.MultipartForm = c.Request.MultipartForm // so that net/http removes its files
			a.Done(o)
		}()
		a.WriteHeaders(c.Writer.Header())
		c.Request = r.WithContext(a.Context())
		r.Body = body // net/http needs it to see that a body was closed early
		c.Next()
		o.Panicked, o.Status, o.Bytes = false, c.Writer.Status(), int64(max(0, c.Writer.Size()))
		o.HungUp = len(c.Errors) > 0 && !c.Writer.Written() // a middleware around this one will send the status
	}
}
