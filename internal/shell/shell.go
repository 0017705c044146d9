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

// quoted are words that a shell takes literally, special what else means something to it.
var (
	quoted  = regexp.MustCompile(`'[^']*'`)
	special = regexp.MustCompile("[$`\\\\\";|&<>()*?\\[\\]#~\n]")
)

// IsPlain reports whether a shell runs a command as it reads: as one, or as several joined by " && ", without expanding or
// redirecting anything. A name in it that others have chosen, and that has no blank, cannot change that.
func IsPlain(command string) bool {
	command = quoted.ReplaceAllString(strings.ReplaceAll(command, " && ", " "), "x")
	return !special.MatchString(command) && !strings.Contains(command, "'")
}
