package faults

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/netstate"
)

// userspaceFaults are about agents that move the packets themselves, and about peers.
var userspaceFaults = []Fault{
	{
		Name:        "mover-down",
		Finding:     "runner-down",
		Description: "the agent, which moves the packets, does not run",
		Backends:    userspace,
		Inject:      func(_ context.Context, v *Target) error { return v.Node.KillAgent() },
		Undo:        restartAgent,
	},
	{
		Name:        "mover-port-taken",
		Finding:     "runner-down",
		Description: "a process has the UDP port that the agent needs",
		Backends:    userspace,
		KeepAgent:   true,
		Inject:      takeAgentPort,
		Undo:        func(_ context.Context, v *Target) error { return v.held.Close() },
	},
	{
		Name:        "peer-mover-down",
		Finding:     "udp-sent-unanswered",
		Probe:       true,
		KeepAgent:   true,
		Description: "the peer's agent, which moves the packets, does not run",
		Backends:    userspace,
		Inject:      func(_ context.Context, v *Target) error { return v.Peer.KillAgent() },
		Undo:        func(ctx context.Context, v *Target) error { return v.Peer.StartAgent(ctx) },
	},
	{Name: "peer-readdressed", Finding: "peer-unanswered", Probe: true, KeepAgent: true, IPv4: true,
		Description: "the peer's address changed, and its agent was not there to say so", Backends: append([]string{"vxlan"}, userspace...),
		Inject: func(ctx context.Context, v *Target) error {
			return errors.Join(v.Peer.KillAgent(), movePeer(movedAddress)(ctx, v))
		},
		Undo: func(ctx context.Context, v *Target) error {
			return errors.Join(moveBack(ctx, v), v.Peer.StartAgent(ctx))
		}},
}

// notReady is how long an agent is waited for that cannot become ready.
const notReady = 2 * time.Second

// takeAgentPort binds the agent's port while it is away. This process holds the socket, and the agent comes back.
func takeAgentPort(ctx context.Context, v *Target) error {
	if err := v.Node.KillAgent(); err != nil {
		return err
	}
	err := v.Node.Do(func() error {
		conn, err := net.ListenUDP(
			map[netstate.Family]string{netstate.IPv4: "udp4", netstate.IPv6: "udp6"}[v.Family],
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.Addr{}, uint16(v.port()))),
		)
		v.held = conn
		return err
	})
	if err != nil {
		return err
	}
	brief, cancel := context.WithTimeout(ctx, notReady)
	defer cancel()
	// On a busy machine the attempt to bind lasts so long that the agent counts as ready meanwhile.
	if err := v.Node.StartAgent(brief); err != nil && brief.Err() == nil {
		return err
	}
	return until(ctx, "the agent says that it moves no packets", func() (bool, error) {
		said, err := v.Node.Ask(ctx, "/status")
		var report agent.Report
		if err == nil {
			err = json.Unmarshal([]byte(said), &report)
		}
		return err == nil && report.Runner != nil && !report.Runner.Running, err
	})
}
