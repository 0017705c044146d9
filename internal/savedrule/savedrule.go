// Package savedrule reads rules as iptables writes them.
package savedrule

// Words splits a rule that iptables -S or iptables-save printed, as iptables-restore does: at spaces outside of double quotes,
// in which a backslash escapes (xtables_save_string writes it before quotation marks, apostrophes and backslashes).
func Words(line string) []string {
	var words []string
	var word []rune
	quoted, escaped, begun := false, false, false
	for _, r := range line {
		switch {
		case escaped:
			word, escaped = append(word, r), false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted, begun = !quoted, true
		case r == ' ' && !quoted:
			if begun {
				words = append(words, string(word))
			}
			word, begun = nil, false
		default:
			word, begun = append(word, r), true
		}
	}
	if begun {
		words = append(words, string(word))
	}
	return words
}
