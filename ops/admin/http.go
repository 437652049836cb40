package admin

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// allow returns an error unless r has one of the methods.
func allow(w http.ResponseWriter, r *http.Request, methods ...string) error {
	if slices.Contains(methods, r.Method) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return refuse(http.StatusMethodNotAllowed, "%s accepts only %s", r.URL.Path, strings.Join(methods, " and "))
}

// query returns the parameters of the query, or an error if a parameter is unknown or repeated.
func query(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the query can't be read: %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return nil, refuse(http.StatusBadRequest, "the query has an unknown parameter %q; %s takes none", name, r.URL.Path)
		case !slices.Contains(known, name):
			return nil, refuse(http.StatusBadRequest, "the query has an unknown parameter %q; known are %s", name,
				strings.Join(known, " and "))
		case len(q[name]) > 1:
			return nil, refuse(http.StatusBadRequest, "the query has more than one %s", name)
		}
	}
	return q, nil
}

// read decodes the JSON object in the body of the call into the struct that body points to.
func (c *call) read(body any) error {
	if media, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); media != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "the content type is %q; want application/json",
			c.r.Header.Get("Content-Type"))
	}
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	err := c.bodyErr
	if err == nil {
		err = d.Decode(body)
	}
	if err == nil {
		if _, after := d.Token(); after != io.EOF {
			err = errors.New("there is text after the object")
		}
	}
	var large *http.MaxBytesError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", large.Limit)
	case errors.As(err, &wrong):
		return refuse(http.StatusBadRequest, "%s is of the wrong type: %s", cmp.Or(wrong.Field, "the body"), wrong.Value)
	case err != nil:
		return refuse(http.StatusBadRequest, "the body can't be read: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// A problem is an error that is sent to the client, as problem details (RFC 9457).
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (p *problem) Error() string { return p.Detail }

// refuse returns a problem with a status and a detail.
func refuse(status int, format string, args ...any) *problem {
	return &problem{http.StatusText(status), status, fmt.Sprintf(format, args...)}
}

var storeFailed = refuse(http.StatusServiceUnavailable, "the store failed")

// fail answers r with the problem of err.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := h.problem(r, err)
	write(w, p.Status, "application/problem+json", p)
}

// problem returns err if it is a problem. It assumes that any other error came from the store. It
// logs that error, unless the client has hung up, and returns storeFailed.
func (h *Handler) problem(r *http.Request, err error) *problem {
	var p *problem
	if !errors.As(err, &p) {
		if r.Context().Err() == nil {
			h.o.Logger.Error("admin: store failed", "path", r.URL.Path, "err", err)
		}
		p = storeFailed
	}
	return p
}

func write(w http.ResponseWriter, status int, contentType string, body any) {
	var text bytes.Buffer
	json.NewEncoder(&text).Encode(body) // body contains only values that JSON can express
	send(w, status, contentType, text.Bytes())
}

func send(w http.ResponseWriter, status int, contentType string, text []byte) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(text) // an error means that the client is gone
}
