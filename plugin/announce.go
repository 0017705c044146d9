package plugin

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/policy/announce/message"
)

// announce tells the agent which addresses the pod has, and waits until it enforces the pod's network policies. Whatever
// comes of it, the pod is wired.
func (a *addRequest) announce(ctx context.Context, args string) error {
	var addrs []netip.Addr
	for _, g := range a.grants {
		addrs = append(addrs, g.Prefix.Addr())
	}
	return a.conf.tellAgent(ctx, message.AddLimit, a.owner, args, addrs, false)
}

// announceGone tells the agent which addresses the pod does not have any more. If that fails, the agent learns it from the
// API server, or from the next pod that has them.
func (c *config) announceGone(ctx context.Context, o ipam.Owner, args string, addrs []netip.Addr) {
	_ = c.tellAgent(ctx, message.DelLimit, o, args, addrs, true)
}

// tellAgent tells the agent of a pod, if the runtime says which pod of Kubernetes it is, and the interface is the one whose
// addresses Kubernetes knows.
func (c *config) tellAgent(ctx context.Context, limit time.Duration, o ipam.Owner, args string, addrs []netip.Addr, gone bool) error {
	p := message.Pod{Addresses: addrs, Gone: gone}
	for pair := range strings.SplitSeq(args, ";") {
		switch key, value, _ := strings.Cut(pair, "="); key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	if p.Namespace == "" || p.Name == "" || o.Dev != "eth0" || len(addrs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return message.Send(ctx, message.Socket(c.subnetFile), p)
}
