package doctor

import "slices"

// Kind is an entry of the catalogue: something that can be wrong.
type Kind struct {
	ID       string
	Severity Severity
	Title    string // one sentence: what is wrong
	Why      string // why it hurts
	Fix      string // in general; a finding has the exact command where there is one
	See      string // the commands that show it
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

// kind is the index of a Kind in the catalogue, in the order in which findings are likely to be the cause of others:
// a device that is gone takes its routes with it, so it comes before routes.
type kind uint8

const (
	none kind = iota

	// What a probe that was followed met.
	packetLost
	policyUnknownPod
	policyOutdated

	// What breaks the path between nodes.
	noLease
	leaseDamaged
	nameTaken
	underlayMissing
	underlayAddress
	underlayTaken
	familyLeftOut
	underlayMTU
	moduleMissing
	udpPortTaken
	deviceForeign
	vtepMissing
	vtepDown
	vtepMAC
	vtepMTU
	vtepAltered
	noCarrier
	bridgeMissing
	bridgeDown
	bridgeMTU
	bridgeAltered
	deviceTaken
	ipForwardOff
	deviceForwardingOff
	gatewayAddress
	ownRoute
	vtepAddress
	forwardRejected
	forwardPolicy
	preroutingDropped
	postroutingDropped
	bridgeNFDropped
	udpOutFiltered
	udpInFiltered
	masqueradeCatchesPods
	policyRule
	routeShadowed
	qdiscDrops
	underlayUnreachable
	underlayNeighbour
	routeMissing
	routeAltered
	fdbAltered
	fdbMissing
	peerAltered
	peerMissing
	neighbourAltered
	neighbourMissing
	fastPathAltered
	rpFilter
	sysctl

	// What is wrong in the cloud's network, of a backend whose routes are there.
	cloudForwardingOff
	cloudOverlap
	cloudDenied
	cloudTableFull
	cloudTableUnlisted
	cloudRouteWrong
	cloudRouteMissing
	cloudPeerUnrouted
	cloudEgress

	// What cuts off single pods or peers, or keeps new pods from starting.
	podLinkDeleted
	podUnplugged
	podLinkDown
	podPort
	podPortUnmarked
	podNeighbour
	duplicateMAC
	duplicateKey
	duplicateSubnet
	peerSkipped
	networkOverlap
	podMTU
	masqueradeMissing
	forwardRules
	guardRules
	podsOfOldLease
	bridgeAddressForeign
	envMissing
	envDamaged
	envStale
	conflistInvalid
	conflistMissing
	conflistShadowed
	conflistSubnetFile
	pluginMissing
	duplicateUnderlay
	rangeFull
	rangeNearlyFull
	reservationsLeaked
	brNetfilterMissing

	// Weaker causes: what only probes show, what keeps the agent from repairing, and what may hurt later.
	packetLostNear
	packetTwice
	runnerDown
	peerUnanswered
	udpSentUnanswered
	udpNotSent
	udpReplyDropped
	pathMTU
	tcpLost
	checksumsBroken
	secondAgent
	fastPathMissing
	leftoverEntries
	leftoverRules
	contended
	fileContended
	certificateEnds
	policiesNotEnforced
	policyEnginesBoth
	policiesIPVS
	addressClaimed
	policyLeftOut
	agentDown
	agentDeaf
	agentNotReady
	backendRefused
	fastPathOff
	fastPathOrphan
	fastPathNoHits
	apiTrouble
	nodesRead
	clockSkew
	conntrackFull
	kubeProxyCIDR
	deviceManager
	kernelOld

	// What is as somebody asked.
	policyDenied
	kinds // how many there are
)

// Catalogue returns all kinds of findings, the likeliest cause first.
func Catalogue() []Kind { return catalogue[none+1:] }

// page returns the path of the kind's documentation.
func (k Kind) page() string { return "Documentation/doctor/" + k.ID + ".md" }
