// Command page bundles the sources of the page of twillctl ui: page SOURCES BUNDLE.
//
// The bundle is committed, so that nobody needs this program to build Twill; a test compares the two.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: page SOURCES BUNDLE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func run(sources, out string) error {
	files, err := bundle(sources)
	if err != nil {
		return err
	}
	size, err := compressed(files)
	if err != nil {
		return err
	}
	if err := write(out, files); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	fmt.Printf("%d files in %s, %.1f KB compressed of %d\n", len(files), out, float64(size)/1000, limit/1000)
	return nil
}
