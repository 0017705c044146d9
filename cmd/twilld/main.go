// Command twilld is Twill's node agent: it leases a subnet for its node and keeps the kernel in the
// state that all nodes' leases ask for. The one with the clouds' APIs is clouds/cmd/twilld.
package main

import (
	"os"

	"github.com/twill-net/twill/agent/daemon"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "devel"

func main() { os.Exit(daemon.Main(version, nil)) }
