package weirgrpc

// Told is told, so that tests can be told again.
var Told = &told
