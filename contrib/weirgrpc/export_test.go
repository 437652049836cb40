package weirgrpc

// WarnedBody is warnedBody, so that tests can be warned again.
var WarnedBody = &warnedBody

// CanonicalName is canonicalName.
var CanonicalName = canonicalName

// MetadataKey is metadataKey, so that tests can do without it.
var MetadataKey = &metadataKey
