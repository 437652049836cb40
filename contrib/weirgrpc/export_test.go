package weirgrpc

// WarnedBody is warnedBody, so that tests can be warned again.
var WarnedBody = &warnedBody

// ForgetInterceptors is as if the process had made no interceptor, and had warned of none.
func ForgetInterceptors() {
	madeUnary.Store(false)
	madeStream.Store(false)
	warnedForgotten.Store(false)
	checkedServices.Clear()
}

// UsualNames is usualNames.
var UsualNames = usualNames
