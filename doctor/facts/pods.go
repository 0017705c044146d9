package facts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/plugin/wire"
)

// defaultCNICache is the cache of libcni in containerd and CRI-O.
const defaultCNICache = "/var/lib/cni"

// cached is what libcni's cache has of one interface of a pod: the file is there from the end of its ADD to the end of
// its DEL.
type cached struct {
	file string

	ContainerID string
	NetworkName string
	NetNS       string
	CNIArgs     [][2]string
	Result      struct {
		Interfaces []struct{ Name, Sandbox string }
		IPs        []struct{ Address string }
	}
}

// ports reads the ports and the pods behind them.
func (g *gathering) ports() error {
	ports, err := g.kernel.Ports()
	if err != nil {
		return err
	}
	g.Ports, g.Pods = nil, nil
	for _, p := range ports {
		g.Ports = append(g.Ports, doctor.Port(p))
	}
	attached, err := wire.AttachedPods()
	if err != nil {
		g.unread("pods", err)
	}
	for a, port := range attached.Addrs {
		g.Pods = append(g.Pods, doctor.Pod{Addr: a, Port: port})
	}
	return nil
}

// podSettles is how long a pod may be in the middle of its DEL: its interface is gone, and libcni still has it.
const podSettles = 300 * time.Millisecond

// cutOff notes the pods whose interface was deleted. Nothing of it is left here, but the runtime's cache says what it
// made, and the namespace of a pod that runs still exists.
func (g *gathering) cutOff(ctx context.Context) error {
	first, err := g.withoutPort()
	if err != nil || len(first) == 0 {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(podSettles):
	}
	if err := g.ports(); err != nil {
		return err
	}
	second, err := g.withoutPort()
	if err != nil {
		return err
	}
	still := slices.DeleteFunc(second, func(c cached) bool {
		return !slices.ContainsFunc(first, func(b cached) bool { return b.file == c.file })
	})
	alive, err := living(still)
	for _, c := range alive {
		gone := slices.DeleteFunc(c.ends(), func(end string) bool { return g.hasPort(end, false) })
		g.CutOff = append(g.CutOff, doctor.CutOff{Namespace: c.arg("K8S_POD_NAMESPACE"), Name: c.arg("K8S_POD_NAME"),
			Sandbox: c.ContainerID, Dev: strings.Join(gone, " "), Addrs: c.addrs()})
	}
	return err
}

// hasPort reports whether the node has a device, or one whose other end is in a pod.
func (g *gathering) hasPort(name string, toPod bool) bool {
	return slices.ContainsFunc(g.Ports, func(p doctor.Port) bool { return p.Name == name && (p.Pod || !toPod) })
}

// withoutPort returns the pods of Twill's network whose interface is not on this node, under no name.
func (g *gathering) withoutPort() ([]cached, error) {
	all, err := g.cached()
	return slices.DeleteFunc(all, func(c cached) bool {
		isHere := func(end string) bool { return g.hasPort(end, true) }
		return len(c.ends()) == 0 || slices.ContainsFunc(c.ends(), isHere) ||
			slices.ContainsFunc(g.Pods, func(p doctor.Pod) bool { return slices.Contains(c.addrs(), p.Addr) })
	}), err
}

// readCache reads libcni's cache, which may be missing. Files of others, and of old versions, are left out.
func readCache(dir string) ([]cached, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []cached
	for _, e := range entries {
		c := cached{file: e.Name()}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil && json.Unmarshal(data, &c) == nil {
			all = append(all, c)
		}
	}
	return all, err
}

// ends returns the names of the devices on the node that the result has: the bridge, the pod's port, and perhaps what
// limits its bandwidth.
func (c cached) ends() []string {
	var names []string
	for _, i := range c.Result.Interfaces {
		if i.Sandbox == "" {
			names = append(names, i.Name)
		}
	}
	return names
}

func (c cached) addrs() []netip.Addr {
	var all []netip.Addr
	for _, ip := range c.Result.IPs {
		if p, err := netip.ParsePrefix(ip.Address); err == nil {
			all = append(all, p.Addr())
		}
	}
	return all
}

func (c cached) arg(name string) string {
	for _, arg := range c.CNIArgs {
		if arg[0] == name {
			return arg[1]
		}
	}
	return ""
}

// living returns the pods whose network namespace still exists. In a container the files of namespaces are not seen:
// there the kernel knows how many namespaces have lost their interface, and not which.
func living(pods []cached) (alive []cached, err error) {
	var unseen []cached
	for _, c := range pods {
		var s unix.Statfs_t
		switch err := unix.Statfs(c.NetNS, &s); {
		case err == nil && s.Type == unix.NSFS_MAGIC:
			alive = append(alive, c)
		case err != nil && !isThere(filepath.Dir(c.NetNS)):
			unseen = append(unseen, c)
		}
	}
	if len(unseen) == 0 {
		return alive, nil
	}
	lonely, err := wire.Lonely()
	switch {
	case err != nil:
		return alive, err
	case lonely >= len(pods):
		return slices.Concat(alive, unseen), nil
	case lonely > len(alive):
		err = fmt.Errorf("%d of %d pods have no interface: their namespaces are not seen from here, so which is not known",
			lonely-len(alive), len(unseen))
	}
	return alive, err
}

func isThere(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}
