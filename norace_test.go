//go:build !race

package weir_test

const race = false
