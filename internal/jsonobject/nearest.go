package jsonobject

import (
	"slices"
	"strings"
)

// Hint returns ": did you mean X?" if a key that nobody asked for is like one that somebody did, or like one of more; empty
// if it is like none.
func (o Object) Hint(key string, more ...string) string {
	known := slices.Clone(more)
	for _, name := range o.asked {
		known = append(known, name)
	}
	slices.Sort(known) // the same one each time
	if name := Nearest(key, known); name != "" {
		return ": did you mean " + name + "?"
	}
	return ""
}

// Nearest returns the name of which word is a misspelling or a beginning, or that is a beginning of word; empty if there is
// none. Case does not count.
func Nearest(word string, known []string) string {
	best, least := "", 0
	for _, name := range known {
		a, b := strings.ToLower(word), strings.ToLower(name)
		far := distance(a, b)
		short := min(len(a), len(b))
		isNear := far <= 2 && far*3 <= len(b) || short > 3 && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
		if isNear && (best == "" || far < least) {
			best, least = name, far
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace, or exchange with the next one, that make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
