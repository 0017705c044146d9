package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/twill-net/twill/internal/reference"
)

const commandsHead = `# Commands of twillctl

` + "`kubectl twill`" + ` is the same program, with the commands that are about a cluster's nodes. [Debugging](../debugging.md)
explains the commands, and [the lab](../lab.md) those of ` + "`twillctl lab`" + `.

`

// options is what cobra writes about flags: lines too long for a page.
var options = regexp.MustCompile("(?s)### Options( inherited from parent commands)?\n\n```\n.*?```\n")

// flagTable returns a section with the flags, empty if there is none but --help.
func flagTable(title string, flags *pflag.FlagSet) string {
	head := "### " + title + "\n\n| flag | default | meaning |\n|---|---|---|\n"
	table := head
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value := " "
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			value = " `" + f.DefValue + "` "
		}
		table += fmt.Sprintf("| `%s` |%s| %s |\n", name, value, strings.ReplaceAll(usage, "|", `\|`))
	})
	if table == head {
		return ""
	}
	return table
}

// commandPages returns the description of c and of the commands below it, in Markdown.
func commandPages(t *testing.T, c *cobra.Command) string {
	t.Helper()
	var page bytes.Buffer
	anchor := func(file string) string { // of a link to another command
		return "#" + strings.NewReplacer("_", "-", ".md", "").Replace(file)
	}
	c.DisableAutoGenTag = true
	if err := doc.GenMarkdownCustom(c, &page, anchor); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(page.String(), "* [", "- [")
	text = strings.ReplaceAll(text, "\t - ", ": ")
	text = strings.ReplaceAll(text, "### SEE ALSO\n", "### See also\n")
	text = options.ReplaceAllStringFunc(text, func(section string) string {
		if strings.HasPrefix(section, "### Options inherited") {
			return flagTable("Options of "+c.Parent().CommandPath(), c.InheritedFlags())
		}
		return flagTable("Options", c.NonInheritedFlags())
	})
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			text += "\n" + commandPages(t, sub)
		}
	}
	return regexp.MustCompile("\n{3,}").ReplaceAllString(strings.TrimRight(text, "\n")+"\n", "\n\n")
}

// TestCommandsReference makes the page of twillctl's commands.
func TestCommandsReference(t *testing.T) {
	commands := commandPages(t, root())
	if n := strings.Count(commands, "\n## twillctl"); n < 20 {
		t.Errorf("%d commands found, there are more", n)
	}
	reference.Write(t, "twillctl.md", commandsHead+commands)
}
