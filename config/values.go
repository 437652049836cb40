package config

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
)

// atLeast1 returns a whole number of at least 1. It must be decimal without leading
// zeros: versions of YAML disagree about 010.
func (d *source) atLeast1(n ast.Node, what string) int64 {
	switch n.(type) {
	case *ast.IntegerNode:
	case *ast.FloatNode:
		d.errorf(n, "%s is %s; want a whole number", what, n.GetToken().Value)
		return 0
	default:
		d.wrongType(n, what, "a whole number")
		return 0
	}
	s := n.GetToken().Value
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		d.errorf(n, "%s %s is too large", what, s)
		return 0
	case err != nil, strings.HasPrefix(strings.TrimLeft(s, "+-"), "0") && v != 0:
		d.errorf(n, "%s is %s; want decimal digits", what, s)
		return 0
	case v < 1:
		d.errorf(n, "%s is %d; want at least 1", what, v)
		return 0
	}
	return v
}

// duration returns a duration. It is written as a number of seconds, or as for
// time.ParseDuration, with weeks and days in front: 1w2d3h.
func (d *source) duration(n ast.Node, what string) time.Duration {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode:
	default:
		d.wrongType(n, what, "seconds, or a duration such as 60s, 1m or 1d")
		return 0
	}
	s := n.GetToken().Value
	v, ok := parseDuration(s)
	switch {
	case !ok && what == "period":
		d.errorf(n, "%s is %q; want seconds, or a duration such as 60s, 1m or 1d, or day, week or month", what, s)
	case !ok:
		d.errorf(n, "%s is %q; want seconds, or a duration such as 60s, 1m or 1d", what, s)
	case v <= 0:
		d.errorf(n, "%s is %s; want more than 0", what, s)
	case v < time.Microsecond, v%time.Microsecond != 0:
		d.errorf(n, "%s is %s; want whole microseconds", what, s)
	}
	return v
}

// parseDuration reads a duration as source.duration describes it. ok is false if s is no
// duration, or one that is too long for a time.Duration.
func parseDuration(s string) (total time.Duration, ok bool) {
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		digits, rest, found := strings.Cut(s, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > uint64((1<<63-1-total)/u.d) {
			return 0, false
		}
		total += time.Duration(n) * u.d
		if s = rest; s == "" {
			return total, true
		}
	}
	if total == 0 && strings.Trim(s, "+-.0123456789") == "" {
		s += "s"
	}
	d, err := time.ParseDuration(s)
	return total + d, err == nil && total+d >= total == (d >= 0)
}

// boolean reads true or false.
func (d *source) boolean(n ast.Node, what string) bool {
	b, ok := n.(*ast.BoolNode)
	if !ok {
		d.wrongType(n, what, "true or false")
		return false
	}
	return b.Value
}

// enforcement reads a percentage of keys.
func (d *source) enforcement(n ast.Node, what string) weir.Enforcement {
	if v, ok := n.(*ast.StringNode); ok {
		if digits, ok := strings.CutSuffix(v.Value, "%"); ok && digits != "" && strings.Trim(digits, ".0123456789") == "" {
			if percent, err := strconv.ParseFloat(digits, 64); err == nil && percent <= 100 {
				return weir.Percent(percent)
			}
		}
	}
	d.errorf(n, "%s is %s; want a percentage of the keys, 0%% to 100%%", what, describe(n))
	return weir.Enforcement{}
}
