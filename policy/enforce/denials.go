package enforce

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/time/rate"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/nflog"
	"github.com/twill-net/twill/packet"
	"github.com/twill-net/twill/policy"
)

// Denials tells of packets that rules of the tables drop.
type Denials interface {
	// Each calls a function with each until ctx is done.
	Each(ctx context.Context, do func(nflog.Packet)) error
}

// Each rule tells of few packets in a second. These bound the lines about new ones that all of them cause together.
const denialsPerSecond, denialsAtOnce = 10, 50

// LogDenied logs packets that rules drop until ctx is done. Those of one source to one port are one line, and more at
// growing intervals while they go on.
func (e *Enforcer) LogDenied(ctx context.Context, from Denials) error {
	limit := rate.NewLimiter(denialsPerSecond, denialsAtOnce)
	err := from.Each(ctx, func(p nflog.Packet) {
		what, object, args := e.denial(p)
		if !e.denials.Has(what, object) && !limit.Allow() {
			what, object, args = e.words().more, "", nil
		}
		e.denials.Add(e.Log, slog.LevelInfo, what, object, args...)
	})
	if err != nil {
		e.Log.Error("what network policies drop is not logged any more", "err", err)
	}
	return nil
}

// words say what is done with packets and frames.
type words struct{ denied, unknown, frame, more string }

func (c Config) words() words {
	if c.Audit {
		return words{"network policies would deny a packet, which passes", "a packet would be dropped because no pod is known to have its address",
			"a pod's frame would be dropped: it may not send from this address, or none of this kind",
			"more packets would be dropped than are logged; metrics count all"}
	}
	return words{"network policies deny a packet", "a packet is dropped because no pod is known to have its address",
		"a pod's frame is dropped: it may not send from this address, or none of this kind",
		"more packets are dropped than are logged; metrics count all"}
}

// denial returns what was done with a packet, to which, in the sense of causes.Log, and what else there is to say.
func (e *Enforcer) denial(p nflog.Packet) (what, object string, args []any) {
	chain, known := e.chainOf(p)
	d := decode(p.Data)
	args = d.args()
	add := func(name, value string) {
		if value != "" {
			args = append(args, name, value)
		}
	}
	words := e.words()
	what = words.denied
	object = fmt.Sprint(p.Prefix, " ", d.from, " ", d.protocol, " ", d.end(d.to, d.toPort))
	switch {
	case p.Family == netstate.Ethernet:
		what = words.frame
		object = fmt.Sprint(p.In) // the rest is what the pod likes
		add("device", deviceName(p.In))
	case !known:
		add("chain", p.Prefix)
	case chain.Policies == "":
		what = words.unknown
	}
	add("direction", strings.ToLower(string(chain.Direction)))
	add("policies", chain.Policies)
	add("source", e.podName(d.from))
	add("destination", e.podName(d.to))
	return what, object, args
}

// chainOf returns whom the chain judges that tells of a packet. It is not known if it is gone
// since, or an earlier agent's.
func (e *Enforcer) chainOf(p nflog.Packet) (chain policy.Chain, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	chain, known = e.chains[netstate.Filter{Family: p.Family, Name: p.Prefix}.Key()]
	return chain, known
}

// podName returns the name of the pod that has an address; empty if none is known to.
func (e *Enforcer) podName(a netip.Addr) string {
	e.tableMu.Lock()
	defer e.tableMu.Unlock()
	if e.table == nil {
		return ""
	}
	if p := e.table.Pod(a); p != nil {
		return p.String()
	}
	return ""
}

// setTable takes a table in place of the one before.
func (e *Enforcer) setTable(t *policy.Table) {
	e.tableMu.Lock()
	defer e.tableMu.Unlock()
	e.table = t
}

// deviceName is the name of the device with a number, or the number if there is none any more.
func deviceName(index int) string {
	dev, err := net.InterfaceByIndex(index)
	if err != nil {
		return fmt.Sprint(index)
	}
	return dev.Name
}

// denied is what a denied packet's headers say. A part that is not understood is zero.
type denied struct {
	from, to         netip.Addr
	fromPort, toPort string
	protocol, detail string
}

// protocolNames are IANA's.
var protocolNames = map[byte]string{1: "ICMP", 6: "TCP", 17: "UDP", 58: "ICMPv6", 132: "SCTP"}

// decode reads a packet's first bytes, which may be anything.
func decode(data []byte) (d denied) {
	layers := packet.DecodeStart(data).Layers
	if len(layers) == 0 {
		return denied{protocol: "unknown"}
	}
	d.from, d.to = layers[0].Src, layers[0].Dst
	if layers[0].Kind != "ip" {
		d.protocol = strings.ToUpper(layers[0].Kind)
		return d
	}
	proto := layers[0].Proto
	d.protocol = cmp.Or(protocolNames[proto], fmt.Sprint(proto))
	if len(layers) > 1 {
		switch next := layers[1]; next.Kind {
		case "tcp", "udp", "sctp":
			d.fromPort, d.toPort = next.From, next.To
		case "icmp":
			d.detail = next.Info
		}
	}
	return d
}

// args are the packet's words in a log line.
func (d denied) args() []any {
	args := []any{"from", d.end(d.from, d.fromPort), "to", d.end(d.to, d.toPort), "protocol", d.protocol}
	if d.detail != "" {
		args = append(args, "type", d.detail)
	}
	return args
}

// end is an address with its port, if there is one.
func (d denied) end(a netip.Addr, port string) string {
	switch {
	case !a.IsValid():
		return "unknown"
	case port == "":
		return a.String()
	}
	return net.JoinHostPort(a.String(), port)
}
