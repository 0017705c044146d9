package doctor

import (
	"fmt"
	"strings"
)

// Page returns the documentation of one kind of finding in Markdown. faults are those of the lab's library that cause it.
func Page(k Kind, faults []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s.\n\n", k.ID, sentence(k.Title))
	what := map[Severity]string{Broken: "Pods are cut off, or new ones do not start.", Risk: "It may work now; it will not always."}
	fmt.Fprintf(&b, "**Severity:** %s. %s\n\n", k.Severity, what[k.Severity])
	fmt.Fprintf(&b, "## Why it hurts\n\n%s.\n\n## How to fix it\n\n%s.\n\n", sentence(k.Why), sentence(k.Fix))
	fmt.Fprintf(&b, "The finding itself names the object and, where there is one, the exact command.\n\n## Look by hand\n\n```\n%s\n```\n",
		strings.ReplaceAll(k.See, "; ", "\n"))
	if len(faults) > 0 {
		fmt.Fprintf(&b, "\n## Reproduce it\n\nIn a lab, by the faults of lab/faults: %s.\n", strings.Join(faults, ", "))
	}
	return b.String()
}

// sentence capitalizes the first letter, unless text begins with a command or an ID.
func sentence(text string) string {
	first, _, _ := strings.Cut(text, " ")
	if strings.ContainsAny(first, "-./_") || strings.HasPrefix(text, "ip ") || strings.HasPrefix(text, "sysctl") || strings.HasPrefix(text, "iptables") {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
