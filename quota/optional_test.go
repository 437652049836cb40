package quota_test

import (
	"reflect"
	"testing"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// TestOptional: quota looks for exactly the methods that package optional describes. It cannot
// import that package, and has copies of its interfaces.
func TestOptional(t *testing.T) {
	for _, tt := range []struct{ copied, described reflect.Type }{
		{reflect.TypeFor[quota.Validator](), reflect.TypeFor[optional.Validator]()},
		{reflect.TypeFor[quota.Stepper](), reflect.TypeFor[optional.Stepper]()},
		{reflect.TypeFor[quota.Queuer](), reflect.TypeFor[optional.Queuer]()},
		{reflect.TypeFor[quota.Reserver](), reflect.TypeFor[optional.Reserver]()},
		{reflect.TypeFor[quota.Canceler](), reflect.TypeFor[optional.Canceler]()},
		{reflect.TypeFor[quota.Forcer](), reflect.TypeFor[optional.Forcer]()},
		{reflect.TypeFor[quota.Metered](), reflect.TypeFor[optional.Metered]()},
		{reflect.TypeFor[quota.Concurrent](), reflect.TypeFor[optional.Concurrent]()},
		{reflect.TypeFor[quota.Indivisible](), reflect.TypeFor[optional.Indivisible]()},
		{reflect.TypeFor[quota.Comparer](), reflect.TypeFor[optional.Comparer]()},
		{reflect.TypeFor[quota.Batcher](), reflect.TypeFor[optional.Batcher]()},
		{reflect.TypeFor[quota.Server](), reflect.TypeFor[optional.Server]()},
		{reflect.TypeFor[quota.Tracker](), reflect.TypeFor[optional.Tracker]()},
		{reflect.TypeFor[quota.Watcher](), reflect.TypeFor[optional.Watcher]()},
		{reflect.TypeFor[quota.Payer](), reflect.TypeFor[optional.Payer]()},
		{reflect.TypeFor[quota.Instant](), reflect.TypeFor[optional.Instant]()},
	} {
		if !tt.copied.Implements(tt.described) || !tt.described.Implements(tt.copied) {
			t.Errorf("%v: the copy of quota has other methods", tt.described)
		}
	}
}
