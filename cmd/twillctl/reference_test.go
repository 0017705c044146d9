package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

const commandsPage = "../../Documentation/twillctl.md"

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

// TestCommandsPage: the page describes the commands that there are. TWILL_WRITE=1 writes it.
func TestCommandsPage(t *testing.T) {
	const marker = "<!-- commands -->\n"
	data, err := os.ReadFile(commandsPage)
	if err != nil {
		t.Fatal(err)
	}
	head, have, _ := strings.Cut(string(data), marker)
	want := commandPages(t, root())
	if n := strings.Count(want, "\n## twillctl"); n < 20 {
		t.Errorf("%d commands found, there are more", n)
	}
	if os.Getenv("TWILL_WRITE") != "" {
		have = want
		if err := os.WriteFile(commandsPage, []byte(head+marker+want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have != want {
		t.Errorf("%s does not end with twillctl's commands: make reference", commandsPage)
	}
}
