package main

import (
	"github.com/spf13/cobra"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/examples"
	"github.com/twill-net/twill/lab/faults"
	"github.com/twill-net/twill/lab/script"
)

// noFiles is what completion of anything but a file says.
const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeLabs completes the name of a lab.
func completeLabs(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	labs, _ := lab.List("") // where they cannot be listed, nothing is offered
	return labs, noFiles
}

// completePods completes the two ends of a packet in a lab.
func completePods(name *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if *name == "" || len(args) >= 2 {
			return nil, noFiles
		}
		_, pods, _ := lab.Names("", *name)
		return pods, noFiles
	}
}

// completeHosts completes one host of a lab behind nothing, or any number behind a file.
func completeHosts(name *string, files int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) < files {
			return nil, cobra.ShellCompDirectiveDefault
		}
		if files == 0 && len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault // of the command that is run there
		}
		return hosts(*name), noFiles
	}
}

func hosts(name string) []string {
	nodes, pods, err := lab.Names("", name)
	if err != nil {
		return nil
	}
	return append(append(nodes, pods...), "outside", "underlay")
}

// completeDo completes a command of the scripts, and what it is about.
func completeDo(name *string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return script.Names(), noFiles
		case args[0] == "fault" && len(args) == 1:
			var all []string
			for _, f := range faults.All() {
				all = append(all, cobra.CompletionWithDesc(f.Name, f.Description))
			}
			return all, noFiles
		case args[0] == "service" && len(args) == 1:
			return []string{"add", "remove"}, noFiles
		}
		return hosts(*name), noFiles
	}
}

// completeScripts completes the name of a script that comes with Twill, or of a file.
func completeScripts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names, _ := examples.Names() // they are part of this program
	for i, name := range names {
		if data, err := examples.Read(name); err == nil {
			names[i] = cobra.CompletionWithDesc(name, script.Title(data))
		}
	}
	return names, cobra.ShellCompDirectiveDefault
}
