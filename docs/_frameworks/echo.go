package frameworks

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/seed83679106/weir"
)

// Echo returns a middleware for echo. admit is Limiter.Admit, or the result of config.File.Admit.
func Echo(admit func(*http.Request) (*weir.Admission, error)) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			r := c.Request()
			body := r.Body
			r.Pattern = c.Path() // for weir.ByRoute
			for _, p := range c.PathValues() {
				r.SetPathValue(p.Name, p.Value) // for weir.ByPathValue
			}
			a, err := admit(r)
			var refused *weir.RefusedError
			if errors.As(err, &refused) {
				refused.Admission.WriteHeaders(c.Response().Header())
				weir.Refuse(c.Response(), r.WithContext(refused.Admission.Context()))
				return nil
			}
			if err != nil { // the client has hung up while it waited
				return echo.ErrServiceUnavailable
			}
			o := weir.Outcome{Panicked: true, Header: c.Response().Header()}
			defer func() {
				r.MultipartForm = c.Request().MultipartForm // so that net/http removes its files
				a.Done(o)
			}()
			a.WriteHeaders(c.Response().Header())
			c.SetRequest(r.WithContext(a.Context()))
			r.Body = body // net/http needs it to see that a body was closed early
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err) // decides the status
			}
			var res *echo.Response
			if res, o.Status = echo.ResolveResponseStatus(c.Response(), nil); res != nil {
				o.Bytes = res.Size
			}
			o.Panicked = false
			return nil
		}
	}
}
