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
		return func(c *echo.Context) (err error) {
			r := c.Request()
			r.Pattern = c.Path() // for keys.ByRoute
			for _, p := range c.PathValues() {
				r.SetPathValue(p.Name, p.Value) // for keys.ByPathValue
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
			a.WriteHeaders(c.Response().Header())
			c.SetRequest(r.WithContext(a.Context()))
			o := weir.Outcome{Panicked: true, Header: c.Response().Header()}
			defer func() { a.Done(o) }()
			err = next(c)
			var res *echo.Response
			res, o.Status = echo.ResolveResponseStatus(c.Response(), err) // the status that echo will send, even for an error
			if res != nil {
				o.Bytes = res.Size
			}
			o.Panicked = false
			return err
		}
	}
}
