package safe

import "reflect"

// Comparable reports whether x == x holds: it is false if the comparison would panic, and for NaN.
// Comparable allocates nothing, whereas reflect.Value.Comparable allocates for a struct.
func Comparable(x any) (ok bool) {
	if x == nil {
		return true
	}
	if !reflect.TypeOf(x).Comparable() {
		return false
	}
	defer func() { _ = recover() }() // a field may hold a value that is not comparable
	y := x
	return x == y
}

// Equal reports whether a and b are the same value. If they cannot be compared, Equal returns
// false.
func Equal[T any](a, b T) bool { return Comparable(a) && any(a) == any(b) }

// Nil reports whether x is nil or a nil pointer, such as a variable of a store's type that was
// declared but never set. The methods of such a store would panic at the first request.
func Nil(x any) bool {
	v := reflect.ValueOf(x)
	return x == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// SameFunc reports whether f and g are the same function. Neither of them may be a closure.
func SameFunc[F any](f, g F) bool {
	return reflect.ValueOf(f).Pointer() == reflect.ValueOf(g).Pointer()
}
