package algorithms_test

import (
	"archive/zip"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// goZones returns every zone of the data that comes with Go. The data of a machine may
// list each change of the clock up to 2037. The data of Go has rules instead, which
// ZoneBounds reads in another way.
func goZones(t *testing.T) (zones []*time.Location) {
	t.Helper()
	root, _ := exec.Command("go", "env", "GOROOT").Output() // with -trimpath, runtime.GOROOT does not know it
	r, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	defer r.Close()
	for _, f := range r.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}
		file, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(file)
		if err != nil {
			t.Fatal(err)
		}
		loc, err := time.LoadLocationFromTZData(f.Name, data)
		if err != nil {
			t.Fatal(err)
		}
		zones = append(zones, loc)
	}
	if len(zones) < 500 {
		t.Fatalf("got %d zones, want all of some 600", len(zones))
	}
	return zones
}

// TestCalendarLeapYears: windows are right on the last days of a leap year. On these days
// Time.ZoneBounds may return a wrong end of the offset from UTC.
func TestCalendarLeapYears(t *testing.T) {
	const newYork = "America/New_York"
	for _, loc := range goZones(t) {
		if loc.String() != newYork {
			continue
		}
		late := time.Date(2028, 12, 31, 12, 0, 0, 0, loc)
		if _, until := late.ZoneBounds(); until.After(late) {
			t.Logf("ZoneBounds of this Go is right: the offset ends at %v", until)
		}
		for _, test := range []struct {
			unit       algorithms.Unit
			at         string
			start, end string
		}{
			{algorithms.Day, "2028-12-30", "2028-12-30", "2028-12-31"},
			{algorithms.Day, "2028-12-31", "2028-12-31", "2029-01-01"},
			{algorithms.Day, "2029-01-01", "2029-01-01", "2029-01-02"},
			{algorithms.Week, "2028-12-28", "2028-12-25", "2029-01-01"},
			{algorithms.Month, "2028-12-01", "2028-12-01", "2029-01-01"},
			{algorithms.Month, "2028-12-31", "2028-12-01", "2029-01-01"},
			{algorithms.Month, "2096-12-31", "2096-12-01", "2097-01-01"},
		} {
			parse := func(date string) int64 {
				at, err := time.ParseInLocation("2006-01-02", date, loc)
				if err != nil {
					t.Fatal(err)
				}
				return at.UnixMicro()
			}
			start, end := windowsOf(test.unit, loc).Window(parse(test.at) + 23*hour)
			if start != parse(test.start) || end != parse(test.end) {
				t.Errorf("%v of %s: got from %v to %v, want from %s to %s", test.unit, test.at, utc(start), utc(end), test.start, test.end)
			}
		}
		return
	}
	t.Errorf("the zone %s is missing", newYork)
}

// TestCalendarZones walks the windows of zones from 1970 to 2100: all months, and the
// days and weeks near each change of the clock and near the end of each leap year. Each
// window begins when the previous window ends. Days begin within a minute of the instants
// that the function boundaries finds; some offsets are not in whole minutes.
func TestCalendarZones(t *testing.T) {
	zones := goZones(t)
	for _, i := range rand.Perm(len(zones))[:min(rounds.N(60, len(zones)), len(zones))] {
		t.Run(zones[i].String(), func(t *testing.T) { walkZone(t, zones[i]) })
	}
}

func walkZone(t *testing.T, loc *time.Location) {
	from := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	to := time.Date(2101, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	walkWindows(t, algorithms.Month, loc, from, to)
	for at, was := from, offset(from, loc); at < to; {
		y, m, d := time.UnixMicro(at).UTC().Date()
		now := offset(at+day, loc)
		switch {
		case m == time.December && d == 29 && y%4 == 0:
			compareDays(t, loc, at, at+5*day)
		case was != now:
			compareDays(t, loc, at-day, at+3*day)
		default:
			at += day
			continue
		}
		walkWindows(t, algorithms.Week, loc, at-7*day, at+14*day)
		at, was = at+day, now
	}
}

func walkWindows(t *testing.T, unit algorithms.Unit, loc *time.Location, from, to int64) {
	c := windowsOf(unit, loc)
	start, end := c.Window(from)
	if from < start || from >= end {
		t.Fatalf("%v: at %v: got the window from %v to %v", unit, utc(from), utc(start), utc(end))
	}
	for end < to {
		nextStart, nextEnd := c.Window(end)
		if nextStart != end || unitNumber(unit, dayNumber(start+12*hour, loc))+1 != unitNumber(unit, dayNumber(end+12*hour, loc)) {
			t.Fatalf("%v: the window from %v to %v is followed by the window from %v to %v", unit, utc(start), utc(end), utc(nextStart), utc(nextEnd))
		}
		start, end = nextStart, nextEnd
	}
}

func compareDays(t *testing.T, loc *time.Location, from, to int64) {
	c := windowsOf(algorithms.Day, loc)
	begins := boundaries(loc, from, to)[algorithms.Day]
	for i, begin := range begins[:len(begins)-1] {
		start, end := c.Window(begin)
		if start > begin || start <= begin-minute || end > begins[i+1] || end <= begins[i+1]-minute {
			t.Fatalf("day: at %v: got the window from %v to %v, want to %v", utc(begin), utc(start), utc(end), utc(begins[i+1]))
		}
		for _, in := range []int64{start, start + (end-start)/2, end - 1} {
			if s, e := c.Window(in); s != start || e != end {
				t.Fatalf("day: at %v: got the window from %v to %v, want from %v to %v", utc(in), utc(s), utc(e), utc(start), utc(end))
			}
		}
	}
}

// TestCalendarFarFromUTC: a location with an offset that no place has, such as 40 hours,
// has windows too.
func TestCalendarFarFromUTC(t *testing.T) {
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	for _, offset := range []int{-1 << 31, -40 * 3600, 40 * 3600, 1<<31 - 1} {
		for _, unit := range units {
			walkWindows(t, unit, time.FixedZone("", offset), now, now+1)
		}
	}
}

// TestEdgesEnd: Edges and Take return for every instant, also for one that no store has. Before
// there was a bound, an instant beyond those of package time ended the process.
func TestEdgesEnd(t *testing.T) {
	for _, unit := range []algorithms.Unit{algorithms.Day, algorithms.Week, algorithms.Month} {
		for _, zone := range []*time.Location{time.UTC, time.FixedZone("", 3600)} {
			for _, at := range []int64{math.MinInt64, math.MinInt64 + 1, -1 << 62, -1 << 53, 0, 1 << 53, 1 << 62, math.MaxInt64} {
				l := algorithms.Calendar(1, unit, zone)
				edges := l.Algorithm.(interface{ Edges(at int64) []int64 }).Edges(at)
				if at > -1<<60 && at < 1<<60 && (edges[1] > at || edges[2] <= at) {
					t.Errorf("%v: the second window around %d is [%d, %d)", l, at, edges[1], edges[2])
				}
				l.Algorithm.Take(quota.State{At: at, A: 1, B: at}, &l, at, 1)
			}
		}
	}
}
