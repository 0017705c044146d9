// Command agnhost-small is agnhost with those of its commands that try connections and accept them, from agnhost's own
// packages. It starts in a fraction of the time, which is what most of a short connection's time is.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/test/images/agnhost/connect"
	"k8s.io/kubernetes/test/images/agnhost/porter"
	servehostname "k8s.io/kubernetes/test/images/agnhost/serve-hostname"
)

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(connect.CmdConnect, porter.CmdPorter, servehostname.CmdServeHostname)
	if root.Execute() != nil {
		os.Exit(1)
	}
}
