// Package examples holds the lab scripts that come with Twill: each shows one thing about overlay networks, and is a
// behaviour test. Their first line says what.
package examples

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed *.txtar
var files embed.FS

// Names are the scripts, in alphabetical order.
func Names() ([]string, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".txtar"))
	}
	return names, nil
}

// Read is one script.
func Read(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".txtar")
	if err != nil {
		return nil, fmt.Errorf("there is no script %q: twillctl lab list shows them", name)
	}
	return data, nil
}
