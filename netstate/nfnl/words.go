package nfnl

import "regexp"

// word is what the program nft reads as one name (string in its scanner.l).
var word = regexp.MustCompile(`^[A-Za-z_.][A-Za-z0-9/_.-]*$`)

// IsWord reports whether the program nft reads a name of a table or a chain as one word. The kernel takes any name: others
// can have chosen one with which a command for nft is another command.
func IsWord(name string) bool { return word.MatchString(name) }
