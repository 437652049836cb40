// Package typo finds the known name that a mistyped name stands for.
package typo

import "strings"

// Nearest returns the first of the known names that takes the fewest edits to make from
// name, or "" if all of them take more than most edits. An edit inserts, removes or replaces
// a byte, or swaps two neighbours (optimal string alignment); upper and lower case are the
// same. Each comparison takes time in proportion to the product of the lengths.
func Nearest(name string, known []string, most int) (nearest string) {
	for _, k := range known {
		if n := distance(strings.ToLower(name), strings.ToLower(k)); n <= most {
			nearest, most = k, n-1
		}
	}
	return nearest
}

func distance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			step := 1
			if a[i] == b[j] {
				step = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+step)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], prev2[j-1]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}
