package weirgrpc

// WarnedBody is warnedBody, so that tests can be warned again.
var WarnedBody = &warnedBody

// UsualNames is usualNames.
var UsualNames = usualNames
