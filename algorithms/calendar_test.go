package algorithms_test

import (
	"fmt"
	"testing"
	"time"
	_ "time/tzdata" // so that the test needs no zones of the machine

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// zones are time zones with irregular days. The number is the first of the ten years that
// TestCalendarWindows checks. The comments say what is unusual about a zone: "skipped" says
// which time or date its clocks skip, and "back" when its clocks go back.
var zones = []struct {
	name string
	year int
}{
	{"UTC", 2015},
	{"Europe/Berlin", 2015},
	{"America/New_York", 2005}, // other rules since 2007
	{"Asia/Kolkata", 2015},
	{"Asia/Kathmandu", 2015},      // UTC+5:45
	{"Australia/Lord_Howe", 2015}, // changes by half an hour
	{"America/Sao_Paulo", 2010},   // skipped at 0:00 until 2018; back from 0:00 to 23:00
	{"Asia/Beirut", 2015},         // skipped at 0:00; back from 0:00 to 23:00
	{"Africa/Cairo", 2015},        // skipped at 0:00; back from 0:00 to 23:00
	{"America/Asuncion", 2015},    // skipped at 0:00; back from 0:00 to 23:00
	{"America/Havana", 2015},      // skipped at 0:00; back from 1:00 to 0:00
	{"Asia/Tehran", 2015},         // skipped at 0:00; back from 0:00 to 23:00
	{"Asia/Amman", 2015},          // skipped at 0:00; back from 1:00 to 0:00
	{"Asia/Damascus", 2015},       // skipped at 0:00; back from 0:00 to 23:00
	{"Asia/Gaza", 2010},           // skipped at 0:00 or 0:01
	{"America/St_Johns", 2005},    // skipped and back over midnight, at 0:01, until 2011
	{"Atlantic/Azores", 2015},     // back from 1:00 to 0:00
	{"America/Scoresbysund", 2015},
	{"Pacific/Apia", 2005},      // skipped 2011-12-30
	{"Pacific/Kwajalein", 1990}, // skipped 1993-08-21
	{"Pacific/Chatham", 2015},   // UTC+12:45
	{"Antarctica/Casey", 2009},  // changes by three hours, and by two
	{"Asia/Pyongyang", 2010},    // changes by half an hour at midnight
	{"America/Caracas", 2007},
	{"Europe/Moscow", 2007},
}

// A windower is the method of the Calendar algorithm that the tests call.
type windower interface {
	Window(at int64) (start, end int64)
}

func windowsOf(unit algorithms.Unit, loc *time.Location) windower {
	return algorithms.Calendar(1, unit, loc).Algorithm.(windower)
}

const (
	minute = int64(60_000_000)
	hour   = 60 * minute
	day    = 24 * hour
)

// dayNumber returns the date that clocks in loc show at an instant, as a number of days since
// 1970-01-01.
func dayNumber(at int64, loc *time.Location) int64 {
	y, m, d := time.UnixMicro(at).In(loc).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86_400
}

// unitNumber returns the number of the day, week or month that contains a day. The argument n
// is the dayNumber of the day.
func unitNumber(unit algorithms.Unit, n int64) int64 {
	switch unit {
	case algorithms.Week:
		return (n + 3) / 7 // 1970-01-01 was a Thursday
	case algorithms.Month:
		y, m, _ := time.Unix(n*86_400, 0).UTC().Date()
		return int64(y)*12 + int64(m)
	}
	return n
}

var units = []algorithms.Unit{algorithms.Day, algorithms.Week, algorithms.Month}

// boundaries returns, for each unit, when windows begin: when clocks in loc show a date
// of the next day, week or month for the first time. from and to are whole hours.
// boundaries reads the clock every hour, and every minute of hours in which the date or
// the offset changes.
func boundaries(loc *time.Location, from, to int64) map[algorithms.Unit][]int64 {
	begins := map[algorithms.Unit][]int64{}
	var latest int64
	for at := from - 3*day; at <= from; at += hour {
		latest = max(latest, dayNumber(at, loc))
	}
	quiet := false // the hour began with the latest date
	for at, shift := from, offset(from, loc); at < to; at += hour {
		nextShift := offset(at+hour, loc)
		was := quiet
		quiet = dayNumber(at+hour, loc) == latest
		if was && quiet && shift == nextShift {
			continue
		}
		for m := at; m < at+hour; m += minute {
			n := max(latest, dayNumber(m+minute, loc))
			for _, unit := range units {
				if unitNumber(unit, n) != unitNumber(unit, latest) {
					begins[unit] = append(begins[unit], m+minute)
				}
			}
			latest = n
		}
		shift, quiet = nextShift, dayNumber(at+hour, loc) == latest
	}
	return begins
}

func offset(at int64, loc *time.Location) int {
	_, o := time.UnixMicro(at).In(loc).Zone()
	return o
}

// TestCalendarWindows compares the windows of ten years of each zone with the instants
// that the function boundaries finds. A window begins at each of these instants and ends
// at the next one. Window returns this window for instants near the edges and in the
// middle of the window.
func TestCalendarWindows(t *testing.T) {
	for _, zone := range zones {
		loc := mustLoad(t, zone.name)
		from := time.Date(zone.year, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
		to := time.Date(zone.year+10, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
		for unit, begins := range boundaries(loc, from, to) {
			if err := compare(windowsOf(unit, loc), begins); err != nil {
				t.Errorf("%v of %s: %v", unit, zone.name, err)
			}
		}
	}
}

func compare(c windower, begins []int64) error {
	if len(begins) < 100 {
		return fmt.Errorf("got only %d windows, want the windows of ten years", len(begins))
	}
	for i, begin := range begins[:len(begins)-1] {
		end := begins[i+1]
		for _, at := range []int64{begin, begin + 1, begin + minute, begin + hour, begin + (end-begin)/2, end - hour, end - minute, end - 1} {
			if at < begin || at >= end { // a window may be short
				continue
			}
			gotStart, gotEnd := c.Window(at)
			if gotStart != begin || gotEnd != end {
				return fmt.Errorf("at %v: got the window from %v to %v, want from %v to %v",
					utc(at), utc(gotStart), utc(gotEnd), utc(begin), utc(end))
			}
		}
	}
	return nil
}

func utc(at int64) string { return time.UnixMicro(at).UTC().Format("2006-01-02T15:04:05.999999") }

// TestCalendarPartition walks from window to window over fifty years: the windows have no
// gap and no overlap, none is empty, and none is longer than its unit may be.
func TestCalendarPartition(t *testing.T) {
	longest := map[algorithms.Unit]int64{algorithms.Day: 27 * hour, algorithms.Week: 7*day + 4*hour, algorithms.Month: 31*day + 4*hour}
	for _, zone := range zones {
		loc := mustLoad(t, zone.name)
		for _, unit := range units {
			c := windowsOf(unit, loc)
			start, end := c.Window(time.Date(1989, 12, 31, 0, 0, 0, 0, time.UTC).UnixMicro())
			for stop := time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro(); end < stop; {
				nextStart, nextEnd := c.Window(end)
				lastStart, lastEnd := c.Window(end - 1)
				if end <= start || end-start > longest[unit] || nextStart != end || lastStart != start || lastEnd != end {
					t.Fatalf("%v of %s: the window from %v to %v: its last instant lies in the window from %v to %v, and the next window is from %v to %v",
						unit, zone.name, utc(start), utc(end), utc(lastStart), utc(lastEnd), utc(nextStart), utc(nextEnd))
				}
				start, end = nextStart, nextEnd
			}
		}
	}
}

// TestCalendarDates compares windows around known changes of clocks with dates that were
// written out by hand.
func TestCalendarDates(t *testing.T) {
	tests := []struct {
		zone       string
		unit       algorithms.Unit
		at         string // as the clock of the zone shows it, with its offset
		start, end string
	}{
		{"UTC", algorithms.Day, "2026-05-05T12:00:00Z", "2026-05-05T00:00:00Z", "2026-05-06T00:00:00Z"},
		// days of 23 and 25 hours
		{"Europe/Berlin", algorithms.Day, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"Europe/Berlin", algorithms.Day, "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"America/New_York", algorithms.Day, "2026-03-08T00:00:00-05:00", "2026-03-08T00:00:00-05:00", "2026-03-09T00:00:00-04:00"},
		{"America/New_York", algorithms.Day, "2026-11-01T23:59:59-05:00", "2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"},
		{"Europe/Berlin", algorithms.Week, "2026-03-29T23:59:59+02:00", "2026-03-23T00:00:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"Europe/Berlin", algorithms.Month, "2026-03-31T23:59:59+02:00", "2026-03-01T00:00:00+01:00", "2026-04-01T00:00:00+02:00"},
		// clocks skip midnight
		{"America/Sao_Paulo", algorithms.Day, "2018-11-04T01:00:00-02:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"},
		{"America/Sao_Paulo", algorithms.Day, "2018-11-03T23:59:59-03:00", "2018-11-03T00:00:00-03:00", "2018-11-04T01:00:00-02:00"},
		{"Asia/Beirut", algorithms.Day, "2024-03-31T12:00:00+03:00", "2024-03-31T01:00:00+03:00", "2024-04-01T00:00:00+03:00"},
		{"Africa/Cairo", algorithms.Day, "2024-04-26T12:00:00+03:00", "2024-04-26T01:00:00+03:00", "2024-04-27T00:00:00+03:00"},
		{"Africa/Cairo", algorithms.Day, "2024-10-31T23:30:00+02:00", "2024-10-31T00:00:00+03:00", "2024-11-01T00:00:00+02:00"},
		// midnight comes twice: clocks go back from 1:00 to 0:00 within the new day
		{"America/Havana", algorithms.Day, "2024-11-03T00:30:00-05:00", "2024-11-03T00:00:00-04:00", "2024-11-04T00:00:00-05:00"},
		{"America/Havana", algorithms.Day, "2024-03-10T01:00:00-04:00", "2024-03-10T01:00:00-04:00", "2024-03-11T00:00:00-04:00"},
		{"Atlantic/Azores", algorithms.Day, "2024-10-27T00:30:00-01:00", "2024-10-27T00:00:00+00:00", "2024-10-28T00:00:00-01:00"},
		// clocks go back over midnight: the window of the 7th has begun, though clocks
		// show the 6th again
		{"America/St_Johns", algorithms.Day, "2010-11-06T23:30:00-03:30", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30"},
		{"America/St_Johns", algorithms.Day, "2010-11-06T23:59:59-02:30", "2010-11-06T00:00:00-02:30", "2010-11-07T00:00:00-02:30"},
		// a date is skipped
		{"Pacific/Apia", algorithms.Day, "2011-12-29T23:59:59-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00"},
		{"Pacific/Apia", algorithms.Week, "2011-12-31T00:00:00+14:00", "2011-12-26T00:00:00-10:00", "2012-01-02T00:00:00+14:00"},
		{"Pacific/Apia", algorithms.Month, "2011-12-31T00:00:00+14:00", "2011-12-01T00:00:00-10:00", "2012-01-01T00:00:00+14:00"},
		// windows of February, and weeks that span a new year
		{"UTC", algorithms.Month, "2024-02-29T12:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"UTC", algorithms.Month, "2100-02-28T12:00:00Z", "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z"},
		{"UTC", algorithms.Day, "2024-02-28T12:00:00Z", "2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"UTC", algorithms.Day, "2025-02-28T12:00:00Z", "2025-02-28T00:00:00Z", "2025-03-01T00:00:00Z"},
		{"UTC", algorithms.Month, "2025-12-31T23:59:59Z", "2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z"},
		{"UTC", algorithms.Week, "1970-01-01T00:00:00Z", "1969-12-29T00:00:00Z", "1970-01-05T00:00:00Z"},
		{"UTC", algorithms.Week, "2026-01-01T00:00:00Z", "2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"},
		{"UTC", algorithms.Week, "2024-12-29T23:59:59Z", "2024-12-23T00:00:00Z", "2024-12-30T00:00:00Z"}, // a Sunday
		{"UTC", algorithms.Week, "2024-12-30T00:00:00Z", "2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z"}, // a Monday
	}
	parse := func(s string) int64 {
		at, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return at.UnixMicro()
	}
	for _, test := range tests {
		start, end := windowsOf(test.unit, mustLoad(t, test.zone)).Window(parse(test.at))
		if start != parse(test.start) || end != parse(test.end) {
			t.Errorf("%v of %s at %s: got from %v to %v, want from %s to %s", test.unit, test.zone, test.at, utc(start), utc(end), test.start, test.end)
		}
	}
}

// TestCalendarRetry: once the quota of a day is spent, RetryAfter names the microsecond at
// which the next day begins, for days of 23, 24 and 25 hours.
func TestCalendarRetry(t *testing.T) {
	berlin := mustLoad(t, "Europe/Berlin")
	tests := []struct {
		day  time.Time
		want time.Duration
	}{
		{time.Date(2026, 3, 28, 0, 0, 0, 0, berlin), 24 * time.Hour},
		{time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), 23 * time.Hour},
		{time.Date(2026, 10, 25, 0, 0, 0, 0, berlin), 25 * time.Hour},
	}
	for _, test := range tests {
		states := make([]quota.State, 1)
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.Calendar(5, algorithms.Day, berlin), Cost: 5}}}
		now := test.day.UnixMicro()
		tx.Decide(now, states)
		tx.Charges[0].Cost = 1
		if tx.Decide(now, states) || tx.RetryAfter() != test.want || tx.Decisions[0].ResetAfter != test.want {
			t.Errorf("%v: got %+v, want a refusal for %v", test.day, tx.Decisions[0], test.want)
		}
		if tx.Decide(now+test.want.Microseconds()-1, states) {
			t.Errorf("%v: allowed a microsecond before the day has ended", test.day)
		}
		if !tx.Decide(now+test.want.Microseconds(), states) || tx.Decisions[0].Remaining != 4 {
			t.Errorf("%v: got %+v when the next day begins, want 4 remaining", test.day, tx.Decisions[0])
		}
	}
}

// TestCalendarTraveller measures what the doc of Calendar warns of: how much a user may
// spend within 24 hours, with a quota of 10 a day, if the user chooses the location of each
// request.
func TestCalendarTraveller(t *testing.T) {
	kiritimati, berlin, pagoPago := mustLoad(t, "Pacific/Kiritimati"), mustLoad(t, "Europe/Berlin"), mustLoad(t, "Pacific/Pago_Pago")
	start := time.Date(2026, 5, 4, 9, 0, 0, 0, time.UTC).UnixMicro() // 11:00 in Berlin; midnight in Kiritimati is in an hour
	west := []*time.Location{kiritimati}                             // each location has midnight an hour after the one before
	for h := 14; h > -9; h-- {
		west = append(west, mustLoad(t, fmt.Sprintf("Etc/GMT%+d", -h)))
	}
	tests := []struct {
		name      string
		locations []*time.Location // of the requests, hour by hour; the last one is for all later hours
		want      int64
	}{
		{"at home", []*time.Location{berlin}, 20},                                    // the quota of two days of Berlin
		{"moves east", []*time.Location{berlin, kiritimati}, 20},                     // the second day comes 12 hours sooner
		{"moves west", []*time.Location{berlin, pagoPago}, 20},                       // at the second request, midnight in Pago Pago is in an hour
		{"there and back", []*time.Location{berlin, kiritimati, berlin}, 30},         // two days of Berlin, one of Kiritimati
		{"to and fro at once", []*time.Location{kiritimati, berlin, kiritimati}, 20}, // no gain: spent units count in both places
		{"follows midnight", west, 24 * 10},                                          // the quota of a day in each of 24 zones
	}
	for _, test := range tests {
		states := make([]quota.State, 1)
		var spent int64
		for i := range int64(24) {
			loc := test.locations[min(int(i), len(test.locations)-1)]
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.Calendar(10, algorithms.Day, loc)}}}
			tx.Decide(start+i*hour, states)
			n := tx.Decisions[0].Remaining
			if tx.Charges[0].Cost = n; tx.Decide(start+i*hour, states) {
				spent += n
			}
		}
		if spent != test.want {
			t.Errorf("%s: got %d units in 24 hours, want %d", test.name, spent, test.want)
		}
	}
}
