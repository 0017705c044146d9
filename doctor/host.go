package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// checkAgent is about the process that repairs what this finds.
func checkAgent(f Facts) []Finding {
	var all []Finding
	for _, p := range f.Programs {
		if p.Name == "flanneld" && f.Agent.Running {
			all = append(all, find("second-agent", fmt.Sprintf("%s, process %d", p.Name, p.PID), "one agent", "two agents", ""))
		}
	}
	switch {
	case !f.Agent.Running:
		all = append(all, find("agent-down", "twilld", "a running process", "none in this network namespace", ""))
	case f.Agent.Deaf:
		all = append(all, find("agent-deaf", "twilld", "an answer on its health port", f.Agent.NotReady, ""))
	case f.Agent.NotReady != "":
		all = append(all, find("agent-not-ready", "twilld", "ready", f.Agent.NotReady, ""))
	}
	switch r := f.Agent.Runner; {
	case r != nil && !r.Running:
		all = append(all, find("runner-down", "twilld", "running", r.Error, ""))
	case !f.Agent.Running && f.movedBy() == "agent":
		all = append(all, find("runner-down", "twilld", "a running process: it moves the packets itself", "none in this network namespace", ""))
	}
	if n := f.Agent.Metrics["twill_contended_total"]; n > 0 {
		all = append(all, find("contended", "objects of the agent's", "no fights", fmt.Sprintf("%.0f since the agent started", n), ""))
	}
	if f.API.Error != "" {
		all = append(all, apiFinding(f.API.Error))
	}
	return all
}

// networkd is the name of systemd-networkd's process: the kernel keeps 15 characters.
const networkd = "systemd-network"

// nearlyFull is the part of the connection table that may be in use, in percent.
const nearlyFull = 90

// checkHost is about the rest of the machine.
func checkHost(f Facts) []Finding {
	var all []Finding
	count, max := number(f.Sysctls["net/netfilter/nf_conntrack_count"]), number(f.Sysctls["net/netfilter/nf_conntrack_max"])
	if max > 0 && count*100 >= max*nearlyFull {
		all = append(all, find("conntrack-full", "the connection table", fmt.Sprintf("less than %d %% of %d", nearlyFull, max), strconv.Itoa(count),
			fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 4*max)))
	}
	for _, p := range f.Programs {
		switch p.Name {
		case "kube-proxy":
			all = append(all, proxyCIDR(f, p)...)
		case "NetworkManager":
			all = append(all, find("device-manager", p.Name, "our devices marked as unmanaged", fmt.Sprintf("process %d runs here", p.PID), ""))
		case networkd:
			all = append(all, find("device-manager", "systemd-networkd", "ManageForeignRoutes=no in networkd.conf", fmt.Sprintf("process %d runs here", p.PID),
				"write [Network] ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no into /etc/systemd/networkd.conf.d/twill.conf, and restart systemd-networkd"))
		}
	}
	for _, m := range f.NoModules {
		all = append(all, find("module-missing", "the kernel's module "+m, "built in, or a file that can be loaded", "neither", ""))
	}
	if major, minor := release(f.Release); major > 0 && (major < 5 || major == 5 && minor < 4) {
		all = append(all, find("kernel-old", "Linux", "5.4 or newer", f.Release, ""))
	}
	return all
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// release is the first two numbers of "6.1.0-18-amd64".
func release(text string) (major, minor int) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	return number(parts[0]), number(parts[1])
}

// proxyCIDR compares kube-proxy's flag, where it has one, with the networks of pods.
func proxyCIDR(f Facts, p Program) []Finding {
	value, ok := flagOf(p.Args, "cluster-cidr")
	if !ok || value == "" {
		return nil
	}
	var want []string
	for _, pool := range f.Lease.Network.Pools {
		want = append(want, pool.Network.String())
	}
	for _, cidr := range strings.Split(value, ",") {
		if len(want) > 0 && !strings.Contains(strings.Join(want, ",")+",", strings.TrimSpace(cidr)+",") {
			return []Finding{find("kube-proxy-cidr", fmt.Sprintf("kube-proxy, process %d", p.PID), "--cluster-cidr="+strings.Join(want, ","), "--cluster-cidr="+value, "")}
		}
	}
	return nil
}

// flagOf is the value of a flag in a command line.
func flagOf(args []string, name string) (string, bool) {
	for i, a := range args {
		flag, value, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || flag != name:
		case joined:
			return value, true
		case i+1 < len(args):
			return args[i+1], true
		}
	}
	return "", false
}

// checkProbes reads what came of packets that were really sent. Peer by peer, the first of underlay, overlay and
// large packets that failed says where.
func checkProbes(f Facts) []Finding {
	failed := map[string]bool{}
	var all []Finding
	for _, p := range f.Probes {
		if p.OK || failed[p.Node] {
			continue
		}
		failed[p.Node] = true
		all = append(all, find(probeKind(p), "peer "+p.Node, fmt.Sprintf("a reply of %s to %d bytes", p.To, p.Size), p.outcome(), ""))
	}
	return all
}

func probeKind(p Probe) string {
	switch {
	case p.Kind == "large":
		return "path-mtu"
	case p.Kind == "tcp":
		return "tcp-lost"
	case p.Kind == "underlay":
		return "peer-unanswered"
	case p.Sent == 0:
		return "udp-not-sent"
	case p.Seen > 0:
		return "udp-reply-dropped"
	}
	return "udp-sent-unanswered"
}

func (p Probe) outcome() string {
	text := p.Error
	if p.Sent >= 0 {
		text += fmt.Sprintf("; packets seen at the underlay's device: %d out, %d in", p.Sent, p.Seen)
	}
	return text
}
