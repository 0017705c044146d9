// Command twilld is Twill's node agent with the clouds' APIs: the one of the image and of releases. The one of the module
// github.com/twill-net/twill is without them.
package main

import (
	"os"

	"github.com/twill-net/twill/agent/daemon"
	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/clouds/ali"
	"github.com/twill-net/twill/clouds/aws"
	"github.com/twill-net/twill/clouds/gce"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "devel"

func main() {
	os.Exit(daemon.Main(version, map[string]cloud.Opener{
		"ali-vpc": ali.New,
		"aws-vpc": aws.New,
		"gce":     gce.New,
	}))
}
