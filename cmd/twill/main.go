// Command twill is the CNI plugin: a container runtime executes it for every pod, as the CNI specification says.
// It can be installed under the name flannel too. With --version it prints its version.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/twill-net/twill/plugin"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "devel"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" && os.Getenv("CNI_COMMAND") == "" {
		fmt.Printf("twill %s (%s)\n", version, runtime.Version())
		return
	}
	os.Exit(plugin.Main())
}
