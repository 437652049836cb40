package algorithms

import (
	"fmt"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A Unit is the length of a Calendar window: a day, a week or a month.
type Unit int

// These are the units of Calendar. A week begins on Monday, as in ISO 8601.
const (
	Day Unit = iota + 1
	Week
	Month
)

func (u Unit) String() string {
	switch u {
	case Day:
		return "day"
	case Week:
		return "week"
	case Month:
		return "month"
	}
	return fmt.Sprintf("Unit(%d)", int(u))
}

// Calendar allows n units in each calendar day, week or month in a time zone. A nil location means
// UTC. A day begins when clocks in the zone first show its date, and may last 23 or 25 hours. The
// limit is named after the unit. The limit's Period of 24 hours, 7 days or 30 days is only for
// display.
//
// Like FixedWindow, Calendar admits at most 2·n units in an interval that is no longer than the
// shortest window that the interval overlaps. In a longer interval it may admit 3·n units: for
// example, in 24 hours that include a 23-hour day, or in 30 days that include a whole February.
//
// Different users may have different time zones (see Policy in weir.Rule), but users must not be
// able to change their time zone at will. A user who switches to another time zone gets a full
// quota at the next midnight in that zone. A single switch gains at most one day's quota. However,
// a user who alternates between two time zones gets two quotas a day, and a user who always
// switches to the zone where midnight comes next gets a new quota every hour. If users can choose
// their time zone, restrict how often a change takes effect, or add a second limit that does not
// depend on the time zone.
func Calendar(n int64, unit Unit, location *time.Location) quota.Limit {
	l := quota.Limit{Name: unit.String(), Algorithm: calendar{unit: unit, location: location}, Quota: n, Period: 24 * time.Hour}
	switch unit {
	case Week:
		l.Period *= 7
	case Month:
		l.Period *= 30
	}
	return l
}

type calendar struct {
	windowed
	unit     Unit
	location *time.Location
}

func (calendar) Name() string     { return "calendar" }
func (c calendar) String() string { return "calendar" }

func (c calendar) Validate(l *quota.Limit) error {
	if c.unit < Day || c.unit > Month {
		return fmt.Errorf("the unit of calendar is %v; want Day, Week or Month", c.unit)
	}
	return validateWindow(l)
}

func (c calendar) Take(s quota.State, l *quota.Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	c.Step(&s, &d, l, now, cost)
	return s, d
}

// Step implements optional.Stepper.
func (c calendar) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	at := max(now, s.At)
	start, end := c.Window(min(at, 1<<53)) // 1<<53 is in the year 2255; only an invalid state has a later At
	windowOf(s, start, end).step(s, d, l.Quota, 0, now, at, cost)
}

// Cancel implements optional.Canceler.
func (c calendar) Cancel(s quota.State, l *quota.Limit, now, at, n int64) quota.State {
	start, _ := c.Window(min(s.At, 1<<53))
	return cancelInWindow(s, l.Quota, start, 0, now, at, n)
}

// Window returns the start and the end of the window that contains a given instant. All three times
// are in µs since 1970.
func (c calendar) Window(at int64) (start, end int64) {
	at = min(max(at, -lastInstant), lastInstant)
	loc := c.location
	if loc == nil {
		loc = time.UTC
	}
	if loc == time.UTC && c.unit != Month { // in UTC, all days last 24 hours; 5 January 1970 was a Monday
		const day = int64(24 * time.Hour / time.Microsecond)
		length, since := day, at
		if c.unit == Week {
			length, since = 7*day, at-4*day
		}
		start = at - (since%length+length)%length
		return start, start + length
	}
	y, m, d := time.UnixMicro(at).In(loc).Date()
	// If clocks are set back past midnight, they show the old date again, although the next day has
	// begun. An instant may therefore lie in a later window than its date suggests.
	for i := range 3 {
		start, end = c.bounds(y, m, d, i, loc)
		if start <= at && at < end {
			return start, end
		}
	}
	// This line is not reached for real time zones, which differ from UTC by less than 36 hours.
	return calendar{unit: c.unit, location: time.UTC}.Window(at)
}

// lastInstant is far later than 2^53 µs, the latest instant of a store. For instants beyond
// lastInstant, the arithmetic of package time overflows and finds no window.
const lastInstant = 1 << 60

// Edges returns the starts of six successive windows, in µs since 1970. The second of these windows
// contains the given instant. Scripts need the starts, because Lua in Redis has no time zones.
func (c calendar) Edges(at int64) []int64 {
	start, end := c.Window(at)
	before, _ := c.Window(start - 1)
	edges := []int64{before, start, end}
	for range 3 {
		_, end = c.Window(end)
		edges = append(edges, end)
	}
	return edges
}

// bounds returns the i-th window after the one that contains the date y-m-d. If i is 0, it returns
// the window that contains the date.
func (c calendar) bounds(y int, m time.Month, d, i int, loc *time.Location) (start, end int64) {
	switch c.unit {
	case Month:
		return begin(y, m+time.Month(i), 1, loc), begin(y, m+time.Month(i+1), 1, loc)
	case Week:
		monday := d - (int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Weekday())+6)%7 + 7*i
		return begin(y, m, monday, loc), begin(y, m, monday+7, loc)
	}
	return begin(y, m, d+i, loc), begin(y, m, d+i+1, loc)
}

// begin returns the first instant whose date in loc is y-m-d or later. This is midnight
// or, if clocks skip midnight, the instant at which they are set forward.
func begin(y int, m time.Month, d int, loc *time.Location) int64 {
	midnight := time.Date(y, m, d, 0, 0, 0, 0, time.UTC) // as if loc were UTC
	if loc == time.UTC {
		return midnight.UnixMicro()
	}
	// Any offset that loc has within 36 hours of midnight UTC may be the offset at
	// midnight in loc: try these offsets in order.
	t := midnight.Add(-dateline).In(loc)
	for latest := midnight.Add(dateline); t.Before(latest); {
		_, offset := t.Zone()
		first := midnight.Add(-time.Duration(offset) * time.Second)
		if first.Before(t) {
			first = t // the date had already begun when this offset took effect
		}
		// ZoneBounds assumes that every year has 365 days if it computes the end from the rules of
		// a zone. On the last days of a leap year, that end is therefore not after t. No zone's
		// rules change the offset on these days.
		_, until := t.ZoneBounds()
		if first.Before(until) || !until.After(t) {
			return first.UnixMicro()
		}
		t = until
	}
	return t.UnixMicro()
}

// The constant dateline is greater than the difference between UTC and any local time.
const dateline = 36 * time.Hour
