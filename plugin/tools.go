//go:build tools

package plugin

// Commands of the upstream module that the image carries and that tests compare with. The imports keep go.mod and
// go.sum complete for them; the tag keeps this file out of every build, since commands cannot be imported.
import (
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
	_ "github.com/containernetworking/plugins/plugins/main/bridge"
	_ "github.com/containernetworking/plugins/plugins/main/loopback"
	_ "github.com/containernetworking/plugins/plugins/meta/bandwidth"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
)
