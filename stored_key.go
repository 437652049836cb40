package weir

import (
	"crypto/sha256"
	"encoding/base64"
)

// The longest key that is stored as it is, in bytes, and the start of a digest.
const (
	maxKey = 128
	digest = "sha256:"
)

// StoredKey returns the key under which stores, caches, bans, lists of offenders and logs
// know a key. A key of at most 128 bytes is its own StoredKey. That of a longer key is
// "sha256:" and its SHA-256 in the URL alphabet of base64, 50 characters together. A client
// that sends keys of a megabyte therefore takes no more memory than one that sends 128
// bytes. A Limiter applies it after Rule.Allow and Rule.Deny, which get the whole key;
// stores apply it to charges that are made by hand. The StoredKey of a stored key is the
// same key.
//
// Finding two long keys with the same digest takes about 2^128 attempts. A short key that
// reads like a digest is the same key as the long key of that digest. Only a client that
// knows the long key can write it, and that client could send the long key itself.
func StoredKey(key string) string {
	if len(key) <= maxKey {
		return key
	}
	return digestOf(key)
}

func digestOf(key string) string {
	h := sha256.New()
	var chunk [512]byte // a copy of the whole key would be as large as the key
	for len(key) > 0 {
		n := copy(chunk[:], key)
		h.Write(chunk[:n])
		key = key[n:]
	}
	var b [len(digest) + 43]byte
	copy(b[:], digest)
	base64.RawURLEncoding.Encode(b[len(digest):], h.Sum(chunk[:0]))
	return string(b[:])
}

// sameKey reports whether two keys have the same StoredKey.
func sameKey(a, b string) bool {
	return a == b || len(a) != len(b) && max(len(a), len(b)) > maxKey && StoredKey(a) == StoredKey(b)
}
