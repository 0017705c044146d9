package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor/rules"
	"github.com/twill-net/twill/netstate"
)

// checkAgent is about the process that repairs what the doctor finds.
func (e *exam) checkAgent() {
	for _, p := range e.Programs {
		if p.Name == "flanneld" && e.Agent.Running {
			e.find(secondAgent, fmt.Sprintf("%s, process %d", p.Name, p.PID), "one agent", "two agents", "")
		}
	}
	switch a := e.Agent; {
	case e.OfFlannel: // which k3s and RKE2 have in a process of their own
	case !a.Running:
		e.find(agentDown, "twilld", "a running process", "none in this network namespace", "")
	case a.Unresponsive:
		e.find(agentDeaf, "twilld", "an answer", a.NotReady, "")
	case a.Refused != "":
		e.find(backendRefused, "twilld", "the backend of the network config", a.Refused, "")
	case a.NotReady != "":
		e.find(agentNotReady, "twilld", "ready", a.NotReady, "")
	}
	if at := e.Agent.NameTakenBy; at != "" {
		e.find(nameTaken, fmt.Sprintf("node %q", e.Node), "one machine of this name", "another machine publishes its lease too, at "+at, "")
	}
	switch r := e.Agent.Runner; {
	case r != nil && !r.Running:
		e.find(runnerDown, "twilld", "running", r.Error, "")
	case !e.Agent.Running && !e.OfFlannel && e.movesPackets():
		e.find(runnerDown, "twilld", "a running process: it moves the packets itself",
			"none in this network namespace", "")
	}
	e.checkTroubles()
	for _, dev := range slices.Sorted(maps.Keys(e.Underlay.ChecksumsBroken)) {
		e.find(checksumsBroken, dev, "packets arrive whose checksums the network card computes",
			"its tx-checksum-ip-generic is off", "")
	}
	if n := e.Agent.Metrics["twill_contended_total"]; n > 0 {
		e.find(contended, "objects that the agent owns", "no conflicts",
			fmt.Sprintf("%.0f since the agent started", n), "")
	}
	e.checkCertificates()
	for _, path := range e.Agent.Contended {
		e.find(fileContended, path, "one program that writes it", "another one changes it again and again", "")
	}
}

// certificateNotice is how long before its end a certificate is a finding.
const certificateNotice = 14 * 24 * time.Hour

func (e *exam) checkCertificates() {
	for _, c := range e.Agent.Certificates {
		left := fmt.Sprintf("%.0f days are left", c.Left.Hours()/24)
		switch {
		case c.Left > certificateNotice:
			continue
		case c.Left <= 0:
			left = "it has ended"
		}
		e.find(certificateEnds, c.Name, "valid for two weeks at least", left, "")
	}
}

// movesPackets reports whether the agent moves the packets between nodes itself, through a TUN device.
func (f Facts) movesPackets() bool {
	for _, o := range f.Want {
		if _, ok := o.(netstate.Tun); ok {
			return true
		}
	}
	return false
}

// apiFixes say who has to act on a problem with the cluster's API.
var apiFixes = map[APIProblem]string{
	Unauthorized: "401: the token is not valid: restart the agent's pod so that it gets a new one, " +
		"or correct its kubeconfig",
	Forbidden: "403: grant %s: Documentation/twill.yml has it",
	TooManyRequests: "429: the API server is overloaded: look at its priority levels " +
		"(kubectl get --raw /metrics | grep flowcontrol_rejected)",
	UnknownAuthority: "the API server's certificate is of another authority: " +
		"correct the kubeconfig's certificate-authority",
	Unreachable: "nobody answers at the API server's address: check that it runs, and that this node reaches it",
}

// checkAPI is about what the cluster's API answers to the agent.
func (e *exam) checkAPI() {
	k, fix := apiTrouble, apiFixes[e.API.Problem]
	switch {
	case e.API.Stray != "":
		e.find(nodesRead, fmt.Sprintf("node %q", e.API.Stray), "Lease objects that say what its annotations do",
			fmt.Sprintf("none, or others; node %q asks all agents to read Nodes", e.API.Guard), "")
		return
	case e.API.Problem == "":
		return
	case e.API.Problem == ExpiredCert:
		k = clockSkew
	case e.API.Problem == Forbidden && e.API.Grant != "":
		fix = fmt.Sprintf(fix, e.API.Grant)
	case e.API.Problem == Forbidden:
		fix = ""
	}
	e.find(k, "the cluster's API", "an answer", e.API.Error, "").says(fix)
}

// networkd is the name of systemd-networkd's process: the kernel keeps 15 characters.
const networkd = "systemd-network"

// nearlyFull is the part of the connection tracking table that may be in use, in percent.
const nearlyFull = 90

// checkHost is about the rest of the machine.
func (e *exam) checkHost() {
	count := number(e.Sysctls["net/netfilter/nf_conntrack_count"])
	max := number(e.Sysctls["net/netfilter/nf_conntrack_max"])
	if max > 0 && count*100 >= max*nearlyFull {
		command := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d", 4*max)
		if e.SizedOutside {
			command = "" // here sysctl would change nothing, and exit 0
		}
		e.find(conntrackFull, "the connection tracking table", fmt.Sprintf("less than %d %% of %d", nearlyFull, max),
			strconv.Itoa(count), command)
	}
	for _, p := range e.Programs {
		runs := fmt.Sprintf("process %d runs here", p.PID)
		switch p.Name {
		case "kube-proxy":
			e.checkProxy(p)
		case "NetworkManager":
			e.find(deviceManager, p.Name, "Twill's devices marked as unmanaged", runs, "")
		case networkd:
			e.find(deviceManager, "systemd-networkd", "ManageForeignRoutes=no in networkd.conf", runs, "").
				says("write [Network] ManageForeignRoutes=no and ManageForeignRoutingPolicyRules=no into " +
					"/etc/systemd/networkd.conf.d/twill.conf, and restart systemd-networkd")
		}
	}
	e.checkBridgeFilter()
	for _, m := range e.NoModules {
		e.find(moduleMissing, "the kernel's module "+m.Name, "built in, or a file that can be loaded", m.Detail, "")
	}
	if major, minor := release(e.Release); major > 0 && (major < 5 || major == 5 && minor < 4) {
		e.find(kernelOld, "Linux", "5.4 or newer", e.Release, "")
	}
}

// checkBridgeFilter is about what kube-proxy and network policies need of the kernel: that packets which are only bridged
// go through their rules, like the answers of a Service's pod to a pod of the same node.
func (e *exam) checkBridgeFilter() {
	object := "kube-proxy"
	proxy := slices.ContainsFunc(e.Programs, func(p Program) bool { return p.Name == "kube-proxy" }) ||
		slices.ContainsFunc(e.Chains, func(c rules.Chain) bool { return c.Name == "KUBE-SERVICES" || c.Table == "kube-proxy" })
	switch {
	case e.Policies.Wanted:
		object = "network policies"
	case !proxy:
		return
	}
	for _, s := range e.Lease.Snapshot.Local.Stacks {
		name := bridgeFilter(s.Family())
		if value, ok := e.Sysctls[name]; !ok {
			e.find(brNetfilterMissing, object, name+" = 1", "no such parameter: br_netfilter is not loaded", "").
				family = s.Family()
		} else if value != "1" {
			e.find(brNetfilterMissing, object, name+" = 1", name+" = "+value, "sysctl -w "+name+"=1").
				family = s.Family()
		}
	}
}

// bridgeFilter returns the parameter that sends bridged packets through the firewall's rules.
func bridgeFilter(f netstate.Family) string {
	if f == netstate.IPv6 {
		return "net/bridge/bridge-nf-call-ip6tables"
	}
	return "net/bridge/bridge-nf-call-iptables"
}

// number returns 0 for what is no number.
func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// release returns the first two numbers of "6.1.0-18-amd64".
func release(text string) (major, minor int) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return 0, 0
	}
	return number(parts[0]), number(parts[1])
}

// checkProxy compares kube-proxy's --cluster-cidr, if it has one, with the networks of pods.
func (e *exam) checkProxy(p Program) {
	var want []string
	for _, pool := range e.Lease.Network.Pools {
		want = append(want, pool.Network.String())
	}
	value := flagOf(p.Args, "cluster-cidr")
	isOther := func(cidr string) bool { return !slices.Contains(want, strings.TrimSpace(cidr)) }
	if value != "" && len(want) > 0 && slices.ContainsFunc(strings.Split(value, ","), isOther) {
		e.find(kubeProxyCIDR, fmt.Sprintf("kube-proxy, process %d", p.PID),
			"--cluster-cidr="+strings.Join(want, ","), "--cluster-cidr="+value, "")
	}
}

// flagOf returns the value of a flag in a command line, empty if it is not there.
func flagOf(args []string, name string) string {
	for i, a := range args {
		flag, value, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !strings.HasPrefix(a, "-") || flag != name:
		case joined:
			return value
		case i+1 < len(args):
			return args[i+1]
		}
	}
	return ""
}

// checkProbes is about packets that were really sent. Of the probes of one peer, in the order underlay, overlay,
// large and TCP, the first that failed says where.
func (e *exam) checkProbes() {
	failed := map[string]bool{}
	for _, p := range e.Probes {
		if p.OK || p.Connects || failed[p.Node] {
			continue
		}
		failed[p.Node] = true
		actual := p.Error
		if p.Sent >= 0 {
			actual += fmt.Sprintf("; packets seen at the underlay's device: %d out, %d in", p.Sent, p.Seen)
		}
		if p.By != "" {
			actual += "; " + p.By
		}
		e.findPeer(p.finding(), p.Node, fmt.Sprintf("a reply of %s to %d bytes", p.To, p.Size), actual, p.Fix)
	}
}

// finding returns what it means that the probe failed.
func (p Probe) finding() kind {
	switch {
	case p.Kind == ProbeLarge:
		return pathMTU
	case p.Kind == ProbeTCP:
		return tcpLost
	case p.Kind == ProbeUnderlay:
		return peerUnanswered
	case p.Sent == 0:
		return udpNotSent
	case p.Seen > 0:
		return udpReplyDropped
	}
	return udpSentUnanswered
}
