package guest

// exemption is a parameter that changes on a host that has Twill.
type exemption struct {
	pattern string // of its line in the output of sysctl -a
	what    string
	becomes string
	after   string // what --cleanup makes of it
}

// exemptions are all that Twill changes for others too, and what follows from that in the kernel. Documentation/guest.md
// has them.
var exemptions = []exemption{
	{`^net\.ipv4\.(ip_forward|conf\.[^ ]*\.forwarding) `, "net.ipv4.ip_forward, and what it sets for each device",
		"1, or no packet of a pod would leave the node", "left on: others may need it by then"},
	{`^net\.ipv6\.conf\.[^ ]*\.forwarding `, "net.ipv6.conf.all.forwarding, and what it sets for each device; with IPv6",
		"1; it has the node ignore router advertisements where accept_ra is 1", "left on"},
	{`^net\.ipv6\.conf\.[^ ]*\.accept_ra `, "net.ipv6.conf.DEVICE.accept_ra of devices that router advertisements configure",
		"2, so that the node keeps the routes and addresses that it has from routers", "left, since forwarding is left on"},
	{`^net\.ipv4\.conf\.[^ ]*\.(accept|send|secure)_redirects |^net\.ipv6\.conf\.[^ ]*\.accept_redirects `,
		"redirects", "the kernel derives from forwarding whether it takes them", "left, since forwarding is left on"},
	{`^net\.bridge\.bridge-nf-call-ip6?tables `, "net.bridge.bridge-nf-call-iptables and -ip6tables; with network policies",
		"1, so that packets between pods of a node are judged", "left on"},
}
