// Package storedkey handles the parts of stored keys: the keys, whose length it bounds because
// clients choose them, and the names of rules, limits and algorithms, which the program chooses.
package storedkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// ErrName is the error for a name that is not printable ASCII.
var ErrName = errors.New("want a name in printable ASCII, because header fields carry it")

// IsName reports whether a String of a structured field can hold s (RFC 9651, 3.3.3).
func IsName(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// Max is the length in bytes of the longest key that is stored unchanged.
const Max = 128

// MinSecret is the minimum length in bytes of a secret with which keys are hashed.
const MinSecret = 16

// IsZero reports whether a secret has only zero bytes, because nothing has filled it.
func IsZero(secret []byte) bool { return len(bytes.Trim(secret, "\x00")) == 0 }

const prefix = "sha256:"

// Of returns the form in which a key is stored: the key itself if it has at most Max bytes, and
// otherwise "sha256:" and the SHA-256 of the key in the URL alphabet of base64, 50 characters
// together. Of returns a stored key unchanged.
//
// Finding two long keys with the same digest takes about 2^128 attempts. A short key that looks
// like a digest is equivalent to the long key with that digest. Only a client that knows the long
// key can compute its digest, and such a client could send the long key itself.
func Of(key string) string {
	if len(key) <= Max {
		return key
	}
	return digest(key)
}

func digest(key string) string {
	h := sha256.New()
	var chunk [512]byte // a copy of the whole key would be as large as the key
	for len(key) > 0 {
		n := copy(chunk[:], key)
		h.Write(chunk[:n])
		key = key[n:]
	}
	var b [len(prefix) + 43]byte
	copy(b[:], prefix)
	base64.RawURLEncoding.Encode(b[len(prefix):], h.Sum(chunk[:0]))
	return string(b[:])
}

// Equal reports whether two keys are stored as the same key.
func Equal(a, b string) bool {
	return a == b || len(a) != len(b) && max(len(a), len(b)) > Max && Of(a) == Of(b)
}
