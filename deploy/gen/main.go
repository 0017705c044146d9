// Command gen writes the files that are generated from deploy/base. It runs in the folder deploy.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/twill-net/twill/deploy"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run() error {
	files, err := deploy.Files(".")
	if err != nil {
		return err
	}
	for path, text := range files {
		path = filepath.Join("..", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
