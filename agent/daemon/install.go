package daemon

import (
	"fmt"
	"io"

	"github.com/twill-net/twill/agent/install"
)

// pluginDir is the image's directory of CNI plugins.
const pluginDir = "/opt/twill/cni"

// installPlugins copies the CNI plugins of the image and prints what it did.
func installPlugins(plugins install.Plugins, out io.Writer) error {
	done, err := plugins.Install()
	for _, path := range done.Written {
		fmt.Fprintln(out, "installed", path)
	}
	for _, path := range done.Left {
		fmt.Fprintln(out, "left", path, "alone: it is not Twill's, --cni-bin-replace replaces it")
	}
	return err
}
