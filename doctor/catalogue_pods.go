package doctor

// podKinds are what keeps single pods, or new ones, from having a network.
func podKinds() []Kind {
	return []Kind{
		{"pod-unplugged", "a pod's interface is not plugged into the bridge", Broken, "this pod reaches nobody", "ip link set VETH master BRIDGE, or delete the pod", "bridge link"},
		{"pod-link-down", "a pod's interface is down on the host", Broken, "this pod reaches nobody", "ip link set VETH up", "ip link show type veth"},
		{"duplicate-mac", "two nodes at different addresses have the same VTEP MAC", Broken, "an FDB has one destination for a MAC: pods of the node that was seen with it later are not reached from here", "delete the VXLAN device of one of them (a cloned machine) and its backend-data annotation; twilld makes a new one", "kubectl get nodes -o yaml | grep VtepMAC"},
		{"duplicate-key", "two nodes at different addresses have the same public key", Broken, "WireGuard has one address for a key: pods of the node that was seen with it later are not reached from here",
			"delete the private key of one of them (a cloned machine) and restart its twilld; it makes a new one", "kubectl get nodes -o yaml | grep PublicKey; ls -l /run/flannel/wgkey"},
		{"duplicate-subnet", "two nodes hold the same subnet", Broken, "only the older of the two gets packets", "take the podCIDR from one of them: delete its Node object and let it register again", "kubectl get nodes -o custom-columns=N:.metadata.name,C:.spec.podCIDR"},
		{"peer-skipped", "a peer is left out", Broken, "pods of that node are not reached from here", "correct that node's record as the reason says", "kubectl describe node"},
		{"network-overlap", "another network of this machine overlaps the pods' network", Broken, "the machine takes some pods for hosts of that network, or the other way round", "move one of the two to other addresses", "ip addr; ip route"},
		{"masquerade-missing", "the masquerading rules are gone or changed", Broken, "what pods send out of the cluster keeps an address that nobody outside can answer", heals, "nft list table ip flannel-ipv4; iptables -t nat -S FLANNEL-POSTRTG"},
		{"forward-rules", "the rules that accept pods' packets are gone, changed or not in their place", Risk, "another rule or a DROP policy decides about pods' packets", heals, "nft list ruleset; iptables -S FORWARD"},
		{"guard-rules", "the rules that keep pods out of the overlay are gone or changed", Risk, "a pod can send packets in the name of any other pod, by wrapping them as a node does", heals, "nft list table ip flannel-ipv4; iptables -t mangle -S"},
		{"bridge-address-foreign", "the pods' bridge has an address of another subnet", Risk, "the bridge plugin of flannel refuses to wire pods then, and packets may leave with this address", "ip addr del ADDRESS dev BRIDGE once no pod has an address of it", "ip addr show cni0"},
		{"env-missing", "subnet.env does not exist", Broken, "the CNI plugin does not know the lease: every new pod stays in ContainerCreating", heals, "ls -l /run/flannel/subnet.env"},
		{"env-damaged", "subnet.env cannot be read", Broken, "the CNI plugin refuses it: every new pod stays in ContainerCreating", heals, "cat /run/flannel/subnet.env"},
		{"env-stale", "subnet.env says something else than the lease", Broken, "new pods get addresses, or an MTU, that are not this node's", heals, "cat /run/flannel/subnet.env"},
		{"conflist-invalid", "the CNI config is not valid", Broken, "the runtime refuses the network: the node is NotReady or pods do not start", "write it anew: twilld --cni-conf-source does", "python3 -m json.tool /etc/cni/net.d/10-twill.conflist"},
		{"conflist-missing", "the runtime has no CNI config of ours", Broken, "the node stays NotReady, or pods get another network", "install it: twilld --cni-conf-source does", "ls /etc/cni/net.d"},
		{"conflist-shadowed", "another CNI config stands before ours", Broken, "runtimes take the first file: new pods get another network", "remove or rename the other file", "ls /etc/cni/net.d"},
		{"conflist-subnet-file", "the CNI config names another subnet.env than the agent writes", Broken, "the plugin reads a file that nobody keeps up to date", "let the conflist's subnetFile and twilld --subnet-file be the same", "cat /etc/cni/net.d/10-twill.conflist"},
		{"plugin-missing", "a CNI plugin that the config names is not installed", Broken, "the runtime cannot start it: no new pod gets a network", "install the plugin into the runtime's bin directory: twilld --install-cni does for its own", "ls /opt/cni/bin"},
		{"duplicate-underlay", "two nodes have the same underlay address", Risk, "nothing, if they are behind one NAT, or are one machine under two names; a record that is not true leads its own pods' packets astray",
			"delete the Node object of the one that is gone, or correct its public-ip annotation", "kubectl get nodes -o yaml | grep public-ip"},
		{"range-full", "all addresses of this node are reserved", Broken, "new pods stay in ContainerCreating", "free leaked reservations (twilld --reservations-dir does), or give nodes larger subnets", "ls /var/lib/cni/networks/cbr0"},
		{"reservations-leaked", "addresses are reserved for pods that are gone", Risk, "the node runs out of addresses sooner or later", "let twilld free them (--reservations-dir), or delete the files", "ls /var/lib/cni/networks/cbr0"},
	}
}

// otherKinds are weaker causes: what keeps the agent from repairing, and what may hurt later.
func otherKinds() []Kind {
	return []Kind{
		{"runner-down", "the agent moves no packets", Broken, "with udp, and with wireguard where the kernel has none, the agent moves the packets itself; with ipsec and extension it keeps what they need", "start twilld; if it runs, look at what it says", "pgrep -a twilld; curl -s localhost:PORT/status"},
		{"peer-unanswered", "a peer's node does not answer at all", Broken, "no pod of that node is reached", "look whether the node is up, and whether the two are in the same network", "ping NODE"},
		{"udp-sent-unanswered", "encapsulated packets leave for a peer, and none comes back", Broken, "a firewall on the way, or at the peer, drops them in one direction, or the peer does not take them", "allow the overlay's UDP port between all nodes (security groups, the peer's INPUT chain); run the doctor on the peer too", "tcpdump -ni DEV udp port 8472 or 8285 or 51820"},
		{"udp-not-sent", "packets for a peer's pods do not leave this node's underlay", Broken, "something on this node drops them after routing", "look for drops on this node: twillctl trace", "tcpdump -ni DEV udp port 8472 or 8285 or 51820"},
		{"udp-reply-dropped", "a peer's encapsulated packets come in, and are not taken", Broken, "something on this node drops them before the overlay's device: a filter, a wrong VNI or key, or a bad checksum", "look for drops on this node: nft list ruleset; nstat UdpInCsumErrors", "tcpdump -ni DEV udp port 8472 or 8285 or 51820"},
		{"path-mtu", "full packets do not pass on the way to a peer", Broken, "connections hang as soon as they carry data, while pings work", "raise the MTU on the way, or lower it: net-conf.json's Backend MTU, or the interface's", "ping -M do -s SIZE PEER"},
		{"tcp-lost", "pings reach a peer's pods and TCP does not", Broken, "mostly a network card that computes checksums of encapsulated packets wrongly: the peer drops them, and lets ping pass",
			"ethtool -K flannel.1 tx-checksum-ip-generic off, here and on the peer; if that changes nothing, look for a filter on the overlay device", "nstat -az TcpInCsumErrors UdpInCsumErrors; ethtool -k flannel.1"},
		{"second-agent", "another agent works on the same network", Broken, "two agents change the same routes back and forth", "stop the other one: of flannel, delete its DaemonSet", "pgrep -a flanneld"},
		{"leftover-entries", "entries of nodes that are no peers", Risk, "packets to an address of a node that left go to whoever has its address now", heals, "ip route; bridge fdb; ip neigh"},
		{"leftover-rules", "chains of another firewall mode, or of another agent, are left", Risk, "two sets of rules decide, and the older one may be wrong", heals, "iptables-save | grep FLANNEL; nft list tables"},
		{"contended", "something else keeps changing what the agent writes", Risk, "each change cuts pods off until it is repaired, and the agent repairs less often after a while",
			"find who does it: the agent's log names the object (something else keeps changing this), ip monitor shows the writer's protocol", "ip -ts monitor route neigh"},
		{"agent-down", "the agent does not run", Risk, "what is written stays, but no peer that comes, moves or leaves is followed, and nothing is repaired", "find out why the pod of its DaemonSet does not run; outside of Kubernetes start what starts twilld", "kubectl --namespace kube-twill describe pods; pgrep -a twilld"},
		{"agent-deaf", "the agent runs and does not answer", Risk, "it may be stuck", "look at its log; restart it", "curl -s localhost:PORT/healthz"},
		{"agent-not-ready", "the agent says that it is not ready", Risk, "it has not leased, or not written, everything yet", "look at its log", "curl -s localhost:PORT/readyz"},
		{"api-trouble", "the cluster's API refuses the agent", Risk, "the lease is not renewed and new peers are not seen", "401: the token is not known; 403: grant the verb that the error names (the ClusterRole of Documentation/twill.yml has all); 429 or a timeout: look at the API server", "kubectl auth can-i --list --as system:serviceaccount:kube-twill:twill"},
		{"clock-skew", "this machine's clock and the certificates of the cluster's API do not agree", Risk, "the agent cannot talk to the API: the lease is not renewed and new peers are not seen",
			"set the clock (chronyc makestep); if it is right, renew the API server's certificate", "date; timedatectl; openssl s_client -connect API:6443 </dev/null | openssl x509 -noout -dates"},
		{"conntrack-full", "the connection table is nearly full", Risk, "new connections are dropped at random", "sysctl -w net.netfilter.nf_conntrack_max=…", "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max"},
		{"kube-proxy-cidr", "kube-proxy believes in another cluster CIDR", Risk, "it masquerades pods' packets to services as if they came from outside, or the other way round", "set kube-proxy's --cluster-cidr to the network of net-conf.json", "kubectl -n kube-system get cm kube-proxy -o yaml"},
		{"device-manager", "NetworkManager or systemd-networkd may manage our devices", Risk, "it takes addresses and routes from devices that it thinks are its own; networkd deletes the routes of others when it starts", "for NetworkManager name them in /etc/NetworkManager/conf.d: [keyfile] unmanaged-devices=interface-name:cni*;interface-name:flannel*;interface-name:veth*; for networkd set ManageForeignRoutes=no", "nmcli device; networkctl"},
		{"kernel-old", "the kernel is older than what Twill is tested on", Risk, "features are missing", "use Linux 5.4 or newer", "uname -r"},
	}
}
