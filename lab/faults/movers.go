package faults

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// moverFaults are about agents that move the packets themselves, and about peers.
var moverFaults = []Fault{
	{Name: "mover-down", Finding: "runner-down", Says: "the agent, which moves the packets, does not run", Backends: movers,
		Inject: func(_ context.Context, v *Victim) error { return v.Node.KillAgent() }, Undo: restartAgent},
	{Name: "mover-port-taken", Finding: "runner-down", Says: "a process has the UDP port that the agent needs", Backends: movers, KeepAgent: true,
		Inject: takeMoversPort, Undo: func(_ context.Context, v *Victim) error { return v.held.Close() }},
	{Name: "peer-mover-down", Finding: "udp-sent-unanswered", Probe: true, KeepAgent: true, Says: "the peer's agent, which moves the packets, does not run",
		Backends: movers, Inject: func(_ context.Context, v *Victim) error { return v.Peer.KillAgent() },
		Undo: func(ctx context.Context, v *Victim) error { return v.Peer.StartAgent(ctx) }},
	{Name: "peer-readdressed", Finding: "peer-unanswered", Probe: true, KeepAgent: true, IPv4: true,
		Says: "the peer's address changed, and its agent was not there to say so", Backends: append([]string{"vxlan"}, movers...),
		Inject: func(ctx context.Context, v *Victim) error {
			return errors.Join(v.Peer.KillAgent(), movePeer(movedAddress)(ctx, v))
		},
		Undo: func(ctx context.Context, v *Victim) error {
			return errors.Join(moveBack(ctx, v), v.Peer.StartAgent(ctx))
		}},
}

// notReady is how long an agent is waited for that cannot become ready.
const notReady = 2 * time.Second

// takeMoversPort binds the agent's port while it is away. This process holds the socket, and the agent comes back.
func takeMoversPort(ctx context.Context, v *Victim) error {
	if err := v.Node.KillAgent(); err != nil {
		return err
	}
	err := v.Node.Do(func() error {
		conn, err := net.ListenUDP(map[bool]string{false: "udp4", true: "udp6"}[v.Six], net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.Addr{}, uint16(v.port()))))
		v.held = conn
		return err
	})
	if err != nil {
		return err
	}
	brief, cancel := context.WithTimeout(ctx, notReady)
	defer cancel()
	if err := v.Node.StartAgent(brief); err == nil {
		return errors.New("the agent is ready although its port is taken: nothing was injected")
	}
	return v.Node.Probe(ctx, "/healthz")
}
