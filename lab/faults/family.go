package faults

// toIPv6 turns the commands of faults, which are written for IPv4, into those for IPv6. Longer texts come first.
var toIPv6 = []string{
	"{own}/32", "{own}/128", "{at}/32", "{at}/128", "{self}/24", "{self}/64",
	"10.244.0.0/16", "fd00:244::/56", "10.244.254.0/24", "fd00:244:0:fe::/64", "10.244.254.0", "fd00:244:0:fe::",
	"10.244.255.0", "fd00:244:0:ff::", "10.244.77.1/24", "fd00:244:0:4d::1/64", "10.244.250.1/24", "fd00:244:0:fa::1/64",
	"192.168.33.223/24", "fd33::223/64", "192.168.33.250", "fd33::250", "192.168.33.253", "fd33::253", "192.168.33.1", "fd33::1",
	"iptables ", "ip6tables ", "table ip other", "table ip6 other", "chain ip other", "chain ip6 other", "rule ip other", "rule ip6 other",
	"ip flannel-ipv4", "ip6 flannel-ipv6", "ip saddr", "ip6 saddr", "call-iptables", "call-ip6tables",
	"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net/ipv4/conf", "net/ipv6/conf", "net/ipv4/neigh", "net/ipv6/neigh",
	"ip rule", "ip -6 rule", "unreachable default", "unreachable ::/0", "ip route flush", "ip -6 route flush",
}
