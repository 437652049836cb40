//go:build race

package weir_test

// race: pools drop what they like, to show who relies on them.
const race = true
