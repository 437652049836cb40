//go:build !race

package weirtest

const Race = false
