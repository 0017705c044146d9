// Command twill is the CNI plugin: a container runtime executes it for every pod, as the CNI specification says.
// It can be installed under the name flannel too.
package main

import (
	"os"

	"github.com/twill-net/twill/plugin"
)

func main() { os.Exit(plugin.Main()) }
