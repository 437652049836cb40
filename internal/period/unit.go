package period

import (
	"fmt"
	"time"
)

// CheckUnit returns an error if an option is a duration below a millisecond, but not 0. No option
// makes sense below a millisecond, so such a value is probably a number without a unit, which Go
// reads as nanoseconds.
func CheckUnit(option string, d time.Duration) error {
	if d <= 0 || d >= time.Millisecond {
		return nil
	}
	return fmt.Errorf("%s is %v; want at least 1ms, such as %d*time.Millisecond", option, d, int64(d))
}
