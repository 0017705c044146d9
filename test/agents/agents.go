// Package agents has twillctl look at the nodes of a lab as it does in the containers of agents, and put together what these
// say as kubectl twill does.
package agents

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/lab"
)

// kubectl stands for the program where there is no cluster: it lists an agent's pod on each node of a lab, and runs
// twillctl as the agent's container would, in the node's network namespace, with the rights that the manifest gives it.
const kubectl = `#!/bin/sh
case $1 in
get)
	case $2 in networkpolicies*) exit;; esac
	echo '{"items": [{"kind": "DaemonSet", "metadata": {"name": "twill", "namespace": "kube-twill", "uid": "twill"}}'
	for node in $LAB_NODES; do
		echo ',{"kind": "Pod", "metadata": {"name": "'$node'", "namespace": "kube-twill",
			"ownerReferences": [{"kind": "DaemonSet", "uid": "twill", "controller": true}]}, "spec": {"nodeName": "'$node'"}}'
	done
	echo ']}';;
exec)
	node=$3
	while [ "$1" != twillctl ]; do shift; done
	shift
	exec nsenter --net="/run/netns/$LAB-$node" unshare --mount --pid --fork --kill-child --mount-proc sh -ec '
		mount -t sysfs sysfs /sys
		mount -t tmpfs tmpfs /run/netns
		exec setpriv --no-new-privs --bounding-set=-all,+dac_override,+net_admin,+net_raw "$@"
		' sh "$TWILLCTL" "$@" --cni-cache-dir="$LAB_DIR/$node/cni-cache";;
esac
`

// Cluster returns the environment in which a lab is a cluster: twillctl --cluster, which is the program, asks its nodes. The
// folder is for what stands for kubectl.
func Cluster(l *lab.Lab, program, dir string) ([]string, error) {
	var names []string
	for _, n := range l.Nodes() {
		names = append(names, n.Name)
	}
	env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "LAB="+l.Name(), "LAB_DIR="+l.Dir(),
		"LAB_NODES="+strings.Join(names, " "), "TWILLCTL="+program)
	return env, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o700)
}
