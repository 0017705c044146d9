package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// pluginDir is where the image has the CNI plugins.
const pluginDir = "/opt/twill/cni"

// installPlugins copies every CNI plugin of the image to dir, each in one step: a runtime may start it at any moment,
// and a program that runs cannot be written to.
func installPlugins(from, dir string, out io.Writer) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("find the CNI plugins: %w", err)
	}
	for _, e := range entries {
		if err := installPlugin(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("install the CNI plugin %s: %w", e.Name(), err)
		}
		fmt.Fprintln(out, "installed", filepath.Join(dir, e.Name()))
	}
	return nil
}

func installPlugin(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp, err := os.CreateTemp(filepath.Dir(to), ".twill-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(tmp, in)
	if err = errors.Join(err, tmp.Chmod(0o755), tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
