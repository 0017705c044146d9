// Package shell writes commands for people to run: what others have named (rules' comments, devices) stays one word, in
// which nothing is expanded.
package shell

import (
	"regexp"
	"strings"
)

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./!-]+$`)

// Quote returns a word as a POSIX shell has to get it.
func Quote(word string) string {
	if plain.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Join returns words as one command.
func Join(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = Quote(w)
	}
	return strings.Join(quoted, " ")
}
