package period

import (
	"fmt"
	"time"
)

// CheckUnit returns an error if an option is a duration below a millisecond, but not 0. None of our
// options makes sense there, so it is a number without a unit, which is that many nanoseconds.
func CheckUnit(option string, d time.Duration) error {
	if d <= 0 || d >= time.Millisecond {
		return nil
	}
	return fmt.Errorf("%s is %v; want at least 1ms, such as %d*time.Millisecond", option, d, int64(d))
}
