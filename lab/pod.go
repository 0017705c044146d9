package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/netstate"
)

// podDev is the interface of a pod.
const podDev = "eth0"

// Pod is a namespace that the plugin wired to a node.
type Pod struct {
	host.Host
	Name  string
	Node  *Node
	Addrs []netip.Addr // IPv4 first
}

var validPod = regexp.MustCompile(`^[a-z0-9]+$`)

func (n *Node) newPod(ps *podState) *Pod {
	return &Pod{Host: n.lab.host(n.Name + "-" + ps.Name), Name: ps.Name, Node: n, Addrs: slices.Clone(ps.Addrs)}
}

// Addr is the pod's address of one family, invalid if it has none.
func (p *Pod) Addr(f netstate.Family) netip.Addr {
	for _, a := range p.Addrs {
		if netstate.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// MTU is that of the pod's interface.
func (p *Pod) MTU() (mtu int, err error) {
	err = p.Links(func(nl *netlink.Handle) error {
		dev, err := nl.LinkByName(podDev)
		if err != nil {
			return err
		}
		mtu = dev.Attrs().MTU
		return nil
	})
	return mtu, err
}

// AddPod makes a namespace and has the plugin wire it. The name is of lower-case letters and digits.
func (n *Node) AddPod(ctx context.Context, name string) (*Pod, error) {
	pod, err := n.AddNamespace(name)
	if err != nil {
		return nil, err
	}
	if err := n.Wire(ctx, pod); err != nil {
		return nil, errors.Join(err, pod.Delete(), n.dropPod(name))
	}
	return pod, nil
}

// AddNamespace makes a namespace that is plugged into nothing: for Wire, or for a lab that is wired by hand.
func (n *Node) AddNamespace(name string) (*Pod, error) {
	if !validPod.MatchString(name) || name == natName || name == vagrantName {
		return nil, fmt.Errorf("pod name %q: want lower-case letters and digits, and not %s or %s", name, natName, vagrantName)
	}
	ps := &podState{Name: name}
	pod := n.newPod(ps)
	if err := pod.Create(); err != nil {
		return nil, err
	}
	return pod, n.lab.change(func(*state) { n.state.Pods = append(n.state.Pods, ps) })
}

// Wire has the plugin wire a namespace.
func (n *Node) Wire(ctx context.Context, pod *Pod) error {
	result, err := n.cni(ctx, pod)
	if err != nil {
		return fmt.Errorf("wire %s of %s: %w", pod.Name, n.Name, err)
	}
	pod.Addrs = nil
	for _, ip := range result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		pod.Addrs = append(pod.Addrs, a.Unmap())
	}
	slices.SortFunc(pod.Addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return n.lab.change(func(*state) {
		for _, ps := range n.state.Pods {
			if ps.Name == pod.Name {
				ps.Addrs = slices.Clone(pod.Addrs)
			}
		}
	})
}

func (n *Node) cni(ctx context.Context, pod *Pod) (*current.Result, error) {
	list, err := n.conflist()
	if err != nil {
		return nil, err
	}
	// libcni starts the plugin on the calling thread: in the node's namespace, as a container runtime does.
	var got *current.Result
	err = n.Do(func() error {
		result, err := n.libcni().AddNetworkList(ctx, list, pod.runtime())
		if err != nil {
			return err
		}
		got, err = current.NewResultFromResult(result)
		return err
	})
	return got, err
}

// DelPod has the plugin take the pod off the network, and removes its namespace.
func (n *Node) DelPod(ctx context.Context, pod *Pod) error {
	if err := n.Unwire(ctx, pod); err != nil {
		return err
	}
	return errors.Join(pod.Delete(), n.dropPod(pod.Name))
}

// Unwire has the plugin take the pod off the network. The lab's manifests still name its addresses, as the API server does
// until the pod is deleted or wired again.
func (n *Node) Unwire(ctx context.Context, pod *Pod) error {
	list, err := n.conflist()
	if err != nil {
		return err
	}
	if err := n.Do(func() error { return n.libcni().DelNetworkList(ctx, list, pod.runtime()) }); err != nil {
		return fmt.Errorf("unwire %s of %s: %w", pod.Name, n.Name, err)
	}
	return nil
}

// CheckPod has the plugin compare the pod with what it should be.
func (n *Node) CheckPod(ctx context.Context, pod *Pod) error {
	list, err := n.conflist()
	if err != nil {
		return err
	}
	return n.Do(func() error { return n.libcni().CheckNetworkList(ctx, list, pod.runtime()) })
}

func (n *Node) dropPod(name string) error {
	return n.lab.change(func(*state) {
		n.state.Pods = slices.DeleteFunc(n.state.Pods, func(p *podState) bool { return p.Name == name })
	})
}

func (n *Node) libcni() *libcni.CNIConfig {
	plugins := []string{filepath.Dir(n.lab.spec.Programs.Plugin)}
	return libcni.NewCNIConfigWithCacheDir(plugins, n.CNICache(), nil)
}

// CNICache is where the node's runtime notes what the plugin made.
func (n *Node) CNICache() string { return filepath.Join(n.Dir(), "cni-cache") }

func (p *Pod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.Host.Name, NetNS: p.Path(), IfName: podDev, Args: p.kubeArgs()}
}

// conflist is the node's CNI config, which it writes when it is missing.
func (n *Node) conflist() (*libcni.NetworkConfigList, error) {
	path := filepath.Join(n.Dir(), "10-twill.conflist")
	data, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0",
		"name":       "cbr0",
		"plugins": []any{map[string]any{
			"type":       filepath.Base(n.lab.spec.Programs.Plugin),
			"subnetFile": n.SubnetFile(),
			"dataDir":    filepath.Join(n.Dir(), "networks"),
		}},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err != nil {
		if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
			return nil, fmt.Errorf("write the CNI config of %s: %w", n.Name, err)
		}
	}
	return libcni.ConfListFromFile(path)
}
