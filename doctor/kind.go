package doctor

import "slices"

// Kind is an entry of the catalogue, Documentation/findings.md: something that can be wrong.
type Kind struct {
	ID       string
	Severity Severity
	Title    string // one sentence: what is wrong
	Why      string // why it hurts
	Fix      string // in general; a finding has the exact command where there is one

	place int // in the catalogue
}

// Severity is what a finding means for pods.
type Severity string

// The severities.
const (
	Broken   Severity = "broken"   // pods are cut off, or will not start
	Risk     Severity = "risk"     // it works now, and will not always
	Intended Severity = "intended" // it is as somebody asked, and nothing is wrong
)

// rank orders severities, the worst first.
func (s Severity) rank() int { return slices.Index([]Severity{Broken, Risk, Intended}, s) }

// kind is the ID of an entry of the catalogue.
type kind string

// rank is the place of the kind in the catalogue, whose order is that in which findings are likely to be the cause of
// others: a device that is gone takes its routes with it, so it comes before routes. One that is not known comes last.
func (k kind) rank() int {
	if c, ok := catalogue[k]; ok {
		return c.place
	}
	return len(entries)
}

// page returns where the kind is documented.
func (k kind) page() string { return "Documentation/findings.md#" + string(k) }

// The kinds, in the order of the page.
const (
	none kind = ""

	// What a probe that was followed met.
	packetLost       kind = "packet-lost"
	policyUnknownPod kind = "policy-unknown-pod"
	policyOutdated   kind = "policy-outdated"

	// What breaks the path between nodes.
	noLease               kind = "no-lease"
	leaseDamaged          kind = "lease-damaged"
	nameTaken             kind = "node-name-taken"
	underlayMissing       kind = "underlay-missing"
	underlayAddress       kind = "underlay-address"
	underlayTaken         kind = "underlay-taken"
	familyLeftOut         kind = "family-left-out"
	underlayMTU           kind = "underlay-mtu"
	moduleMissing         kind = "module-missing"
	udpPortTaken          kind = "udp-port-taken"
	deviceForeign         kind = "device-foreign"
	vtepMissing           kind = "vtep-missing"
	vtepDown              kind = "vtep-down"
	vtepMAC               kind = "vtep-mac"
	vtepMTU               kind = "vtep-mtu"
	vtepAltered           kind = "vtep-altered"
	noCarrier             kind = "no-carrier"
	bridgeMissing         kind = "bridge-missing"
	bridgeDown            kind = "bridge-down"
	bridgeMTU             kind = "bridge-mtu"
	bridgeAltered         kind = "bridge-altered"
	deviceTaken           kind = "device-taken"
	ipForwardOff          kind = "ip-forward-off"
	deviceForwardingOff   kind = "device-forwarding-off"
	gatewayAddress        kind = "gateway-address"
	ownRoute              kind = "own-route"
	vtepAddress           kind = "vtep-address"
	forwardRejected       kind = "forward-rejected"
	forwardPolicy         kind = "forward-policy"
	preroutingDropped     kind = "prerouting-dropped"
	postroutingDropped    kind = "postrouting-dropped"
	bridgeNFDropped       kind = "bridge-nf-dropped"
	udpOutFiltered        kind = "udp-out-filtered"
	udpInFiltered         kind = "udp-in-filtered"
	masqueradeCatchesPods kind = "masquerade-catches-pods"
	policyRule            kind = "policy-rule"
	routeShadowed         kind = "route-shadowed"
	qdiscDrops            kind = "qdisc-drops"
	underlayUnreachable   kind = "underlay-unreachable"
	underlayNeighbour     kind = "underlay-neighbour"
	routeMissing          kind = "route-missing"
	routeAltered          kind = "route-altered"
	fdbAltered            kind = "fdb-altered"
	fdbMissing            kind = "fdb-missing"
	peerAltered           kind = "peer-altered"
	peerMissing           kind = "peer-missing"
	neighbourAltered      kind = "neighbour-altered"
	neighbourMissing      kind = "neighbour-missing"
	fastPathAltered       kind = "fastpath-altered"
	rpFilter              kind = "rp-filter"
	sysctl                kind = "sysctl"

	// What is wrong in the cloud's network, of a backend whose routes are there.
	cloudForwardingOff kind = "cloud-forwarding-off"
	cloudOverlap       kind = "cloud-overlap"
	cloudDenied        kind = "cloud-denied"
	cloudTableFull     kind = "cloud-table-full"
	cloudTableUnlisted kind = "cloud-table-unlisted"
	cloudRouteWrong    kind = "cloud-route-wrong"
	cloudRouteMissing  kind = "cloud-route-missing"
	cloudPeerUnrouted  kind = "cloud-peer-unrouted"
	cloudEgress        kind = "cloud-egress"

	// What cuts off single pods or peers, or keeps new pods from starting.
	podLinkDeleted       kind = "pod-link-deleted"
	podUnplugged         kind = "pod-unplugged"
	podLinkDown          kind = "pod-link-down"
	podPort              kind = "pod-port"
	podPortUnmarked      kind = "pod-port-unmarked"
	podNeighbour         kind = "pod-neighbour"
	duplicateMAC         kind = "duplicate-mac"
	duplicateKey         kind = "duplicate-key"
	duplicateSubnet      kind = "duplicate-subnet"
	peerSkipped          kind = "peer-skipped"
	networkOverlap       kind = "network-overlap"
	podMTU               kind = "pod-mtu"
	masqueradeMissing    kind = "masquerade-missing"
	outsideUnrouted      kind = "outside-unrouted"
	forwardRules         kind = "forward-rules"
	guardRules           kind = "guard-rules"
	podsOfOldLease       kind = "pods-of-old-lease"
	bridgeAddressForeign kind = "bridge-address-foreign"
	envMissing           kind = "env-missing"
	envDamaged           kind = "env-damaged"
	envStale             kind = "env-stale"
	conflistInvalid      kind = "conflist-invalid"
	conflistMissing      kind = "conflist-missing"
	conflistShadowed     kind = "conflist-shadowed"
	conflistSubnetFile   kind = "conflist-subnet-file"
	pluginMissing        kind = "plugin-missing"
	duplicateUnderlay    kind = "duplicate-underlay"
	rangeFull            kind = "range-full"
	rangeNearlyFull      kind = "range-nearly-full"
	reservationsLeaked   kind = "reservations-leaked"
	brNetfilterMissing   kind = "br-netfilter-missing"

	// Weaker causes: what only probes show, what keeps the agent from repairing, and what may hurt later.
	packetLostNear      kind = "packet-lost-near"
	packetTwice         kind = "packet-twice"
	runnerDown          kind = "runner-down"
	peerUnanswered      kind = "peer-unanswered"
	udpSentUnanswered   kind = "udp-sent-unanswered"
	udpNotSent          kind = "udp-not-sent"
	udpReplyDropped     kind = "udp-reply-dropped"
	outsideUnanswered   kind = "outside-unanswered"
	pathMTU             kind = "path-mtu"
	tcpLost             kind = "tcp-lost"
	checksumsBroken     kind = "checksums-broken"
	secondAgent         kind = "second-agent"
	fastPathMissing     kind = "fastpath-missing"
	leftoverEntries     kind = "leftover-entries"
	leftoverRules       kind = "leftover-rules"
	contended           kind = "contended"
	fileContended       kind = "file-contended"
	certificateEnds     kind = "certificate-ends"
	policiesNotEnforced kind = "policies-not-enforced"
	policyEnginesBoth   kind = "policy-engines-both"
	policiesIPVS        kind = "policies-ipvs"
	addressClaimed      kind = "address-claimed"
	policyLeftOut       kind = "policy-left-out"
	agentDown           kind = "agent-down"
	agentDeaf           kind = "agent-deaf"
	agentNotReady       kind = "agent-not-ready"
	backendRefused      kind = "backend-refused"
	fastPathOff         kind = "fastpath-off"
	fastPathOrphan      kind = "fastpath-orphan"
	fastPathNoHits      kind = "fastpath-no-hits"
	apiTrouble          kind = "api-trouble"
	nodesRead           kind = "nodes-read"
	clockSkew           kind = "clock-skew"
	conntrackFull       kind = "conntrack-full"
	kubeProxyCIDR       kind = "kube-proxy-cidr"
	deviceManager       kind = "device-manager"
	kernelOld           kind = "kernel-old"

	// What is as somebody asked.
	policyDenied kind = "policy-denied"
)
