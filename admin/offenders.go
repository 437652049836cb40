package admin

import (
	"time"

	"github.com/seed83679106/weir/watch"
)

// An offender is a key that was refused in the last 5 minutes, or in the last hour.
type offender struct {
	watch.Refused
	Five, Hour int64 // refusals, at least
	Rate       string
	Ago        string
}

// mostOffenders is how many keys of each window are shown, and mostShadows how many of these may be
// keys that only a rule in shadow would have refused. Those come last.
const mostOffenders, mostShadows = 10, 5

// offenders returns the keys that were refused most in the last 5 minutes, and those of the last
// hour that are not among them.
//
// The rate is that of the last 15 to 75 s: that of 5 minutes would be low while a flood is new, and high
// after it.
func (h *Handler) offenders(five []watch.Refused) []offender {
	type id struct {
		rule, key string
		shadow    bool
	}
	idOf := func(k *watch.Refused) id { return id{k.Rule, k.Key, k.Shadow} }
	hour, _ := h.o.Top.Keys(time.Hour)
	now, over := h.o.Top.Keys(time.Minute)
	if over < 15*time.Second { // of a minute that has just begun
		now, over = h.o.Top.Keys(2 * time.Minute)
	}
	inFive, inHour, atOnce := map[id]int64{}, map[id]int64{}, map[id]int64{}
	for i := range now {
		atOnce[idOf(&now[i])] = now[i].AtLeast()
	}
	for i := range five {
		inFive[idOf(&five[i])] = five[i].AtLeast()
	}
	for i := range hour {
		inHour[idOf(&hour[i])] = hour[i].AtLeast()
	}
	list, shown := []offender{}, map[id]bool{}
	for _, shadow := range []bool{false, true} {
		for _, keys := range [][]watch.Refused{five, hour} {
			most := mostOffenders
			if shadow {
				most = mostShadows
			}
			for i := range keys {
				k, id := &keys[i], idOf(&keys[i])
				if k.Shadow != shadow {
					continue
				}
				if !shown[id] {
					shown[id] = true
					list = append(list, offender{*k, inFive[id], inHour[id], rate(atOnce[id], over.Seconds()), ago(k.Last)})
				}
				if most--; most == 0 {
					break
				}
			}
		}
	}
	return list
}
