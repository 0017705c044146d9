package lab

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/lab/fabric"
	"github.com/twill-net/twill/netstate"
)

// cloudServer is the process on the router that plays the cloud of a backend whose routes are there.
const cloudServer = "cloud"

// isCloud reports whether the lab's backend is a cloud's.
func (s Spec) isCloud() bool { return !s.Bare && fabric.IsCloud(s.kind()) }

// kind is the backend's Type.
func (s Spec) kind() string {
	var conf struct{ Backend struct{ Type string } }
	if json.Unmarshal(s.NetConf, &conf) == nil && conf.Backend.Type != "" {
		return conf.Backend.Type
	}
	return s.Backend
}

// checkCloud returns what a cloud's lab cannot be.
func (s Spec) checkCloud() error {
	if !s.isCloud() {
		return nil
	}
	for _, name := range append(s.NodeNames(), "") {
		if site := s.site(name); site.Vagrant || site.NAT || site.Split {
			return fmt.Errorf("backend %s: nodes of a cloud have one network interface and no router of their own", s.kind())
		}
	}
	if slices.Contains(s.Families(), netstate.IPv6) && s.kind() != "aws-vpc" {
		return fmt.Errorf("family %s: backend %s has no routes of IPv6: want family 4", s.Family, s.kind())
	}
	return nil
}

// checkAgent returns an error if the lab's agent does not contain its cloud, as that of make lab: Twill's with the clouds
// has Amazon's SDK among its modules.
func (s Spec) checkAgent() error {
	if !s.isCloud() {
		return nil
	}
	info, err := buildinfo.ReadFile(s.Programs.Agent)
	if err != nil || !strings.HasPrefix(info.Path, "github.com/twill-net/twill/") {
		return nil // somebody else's: it says itself what it is missing
	}
	if !slices.ContainsFunc(info.Deps, func(m *debug.Module) bool { return m.Path == "github.com/aws/aws-sdk-go-v2" }) {
		return fmt.Errorf("%s: %w", s.Programs.Agent, cloud.Absent(s.kind()))
	}
	return nil
}

// cloudURL is where the API of the lab's cloud is.
func (l *Lab) cloudURL() string { return "http://" + l.routerAddr().String() }

func (l *Lab) cloudClient() fabric.Client {
	return fabric.Client{HTTP: l.onRouter(), URL: l.cloudURL()}
}

// startCloud starts the cloud. The router sends packets back by the bridge by which they came, which is no reason to tell
// the sender of a shorter way.
func (l *Lab) startCloud(ctx context.Context) error {
	if !l.spec.isCloud() {
		return nil
	}
	for _, device := range []string{"all", bridgeName(0), bridgeName(l.spec.segments() - 1)} {
		if err := l.setSysctl(l.underlay, "net/ipv4/conf/"+device+"/send_redirects", "0"); err != nil {
			return err
		}
	}
	err := l.underlay.Links(func(nl *netlink.Handle) error {
		lo, err := nl.LinkByName("lo")
		if err != nil {
			return err
		}
		for _, p := range fabric.Metadata {
			if err := addAddr(nl, lo, p); err != nil && !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	command := append(slices.Clone(l.spec.Programs.Server), cloudServer, l.spec.kind())
	return l.runServer(ctx, cloudServer, filepath.Join(l.dir, cloudServer), command, func(ctx context.Context) error {
		return l.cloudClient().Do(ctx, "GET routes", nil, nil)
	})
}

// joinCloud tells the cloud of a node.
func (n *Node) joinCloud(ctx context.Context) error {
	if !n.lab.spec.isCloud() {
		return nil
	}
	return n.lab.cloudClient().Do(ctx, "PUT machine", n.machine(), nil)
}

// leaveCloud tells the cloud that a node is gone.
func (n *Node) leaveCloud(ctx context.Context) error {
	if !n.lab.spec.isCloud() {
		return nil
	}
	return n.lab.cloudClient().Do(ctx, "DELETE machine", n.machine(), nil)
}

func (n *Node) machine() fabric.Machine {
	return fabric.Machine{Name: n.Name, MAC: fmt.Sprintf("02:00:00:00:00:%02x", n.Number), Addrs: n.Underlay()}
}

// CloudRoutes are what the cloud's routing tables hold.
func (l *Lab) CloudRoutes(ctx context.Context) (routes []cloud.Route, err error) {
	return routes, l.cloudClient().Do(ctx, "GET routes", nil, &routes)
}

// SetCloudRoutes replaces what the cloud's routing tables hold, as somebody does who is no node.
func (l *Lab) SetCloudRoutes(ctx context.Context, routes []cloud.Route) error {
	return l.cloudClient().Do(ctx, "PUT routes", routes, nil)
}

// BreakCloud sets what the cloud does to its callers.
func (l *Lab) BreakCloud(ctx context.Context, f fake.Faults) error {
	return l.cloudClient().Do(ctx, "PUT faults", f, nil)
}

// Forward turns the forwarding of the node's network interface on or off.
func (n *Node) Forward(ctx context.Context, on bool) error {
	return n.lab.cloudClient().Do(ctx, "PUT forwards", fabric.Forwards{Machine: n.Name, On: on}, nil)
}

// SetCloudTables says which routing tables there are beside the one that the nodes' subnet uses.
func (l *Lab) SetCloudTables(ctx context.Context, more ...fake.Table) error {
	return l.cloudClient().Do(ctx, "PUT tables", more, nil)
}

// SetCloudBlock gives the cloud's network another block of addresses; the zero value is the underlay's again.
func (l *Lab) SetCloudBlock(ctx context.Context, block netip.Prefix) error {
	return l.cloudClient().Do(ctx, "PUT block", block, nil)
}

// AgentEnvironment is what agents need beside their flags: by what they find the cloud, if the lab has one.
func (l *Lab) AgentEnvironment() []string {
	if !l.spec.isCloud() {
		return nil
	}
	return fabric.Environment(l.spec.kind(), l.cloudURL())
}
