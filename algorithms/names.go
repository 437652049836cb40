package algorithms

import "github.com/seed83679106/weir/quota"

// withoutParameters contains every algorithm whose only parameters are those of a quota.Limit.
var withoutParameters = [...]quota.Algorithm{
	gcra, tokenBucket, leakyBucket{"leaky-bucket"}, fixedWindow{}, anchoredWindow{}, slidingWindow{}, slidingLog{}, inFlight{},
}

// Names returns the names that ByName accepts.
func Names() []string {
	names := make([]string, len(withoutParameters))
	for i, a := range withoutParameters {
		names[i] = a.Name()
	}
	return names
}

// ByName returns the algorithm whose Name method returns name. It returns nil for an unknown name
// and for "calendar", because a calendar window also needs a unit and a time zone: use Calendar.
func ByName(name string) quota.Algorithm {
	for _, a := range withoutParameters {
		if a.Name() == name {
			return a
		}
	}
	return nil
}
