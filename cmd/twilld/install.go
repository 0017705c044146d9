package main

import (
	"fmt"
	"io"

	"github.com/twill-net/twill/agent/install"
)

// pluginDir is where the image has the CNI plugins.
const pluginDir = "/opt/twill/cni"

// installPlugins copies every CNI plugin of the image to dir and says which it wrote.
func installPlugins(from, dir string, out io.Writer) error {
	written, err := install.Plugins(from, dir)
	for _, path := range written {
		fmt.Fprintln(out, "installed", path)
	}
	return err
}
