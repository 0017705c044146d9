package scale

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/twill-net/twill/netstate"
)

// Cost is how long something takes, and the processor time for it.
type Cost struct{ Took, CPU time.Duration }

// Floor is what iproute2 takes for the kernel objects of the peers [1, to) on a device of the machine's own: what
// any agent with the machine's setting needs at least. It is removed again.
func (m *Machine) Floor(ctx context.Context, to int) (cost Cost, err error) {
	if _, err := m.Exec(ctx, strings.Fields("ip link add flannel.1 type vxlan id 1 dev u0 dstport 8472 nolearning local "+Underlay(0).String())...); err != nil {
		return cost, err
	}
	defer func() { _, _ = m.Exec(context.WithoutCancel(ctx), "ip", "link", "del", "flannel.1") }()
	if _, err := m.Exec(ctx, "ip", "link", "set", "flannel.1", "up"); err != nil {
		return cost, err
	}
	var ip, bridge strings.Builder
	for i := 1; i < to; i++ {
		a := Subnet(i).Addr()
		fmt.Fprintf(&ip, "neigh replace %s lladdr %s dev flannel.1 nud permanent\n", a, MAC(i))
		metric := netstate.DefaultMetric(a)
		if m.setting.SpreadMetrics {
			metric = netstate.SpreadMetric(Subnet(i))
		}
		fmt.Fprintf(&ip, "route replace %s via %s dev flannel.1 onlink proto 116 metric %d\n", Subnet(i), a, metric)
		fmt.Fprintf(&bridge, "fdb replace %s dst %s dev flannel.1 self permanent\n", MAC(i), Underlay(i))
		if m.cluster.dual {
			a := SubnetV6(i).Addr()
			fmt.Fprintf(&ip, "neigh replace %s lladdr %s dev flannel.1 nud permanent\n", a, macV6(i))
			fmt.Fprintf(&ip, "route replace %s via %s dev flannel.1 onlink proto 116\n", SubnetV6(i), a)
			fmt.Fprintf(&bridge, "fdb replace %s dst %s dev flannel.1 self permanent\n", macV6(i), Underlay(i))
		}
	}
	for _, b := range []struct{ program, lines string }{{"ip", ip.String()}, {"bridge", bridge.String()}} {
		began := time.Now()
		cpu, err := m.batch(ctx, b.program, b.lines)
		if err != nil {
			return cost, err
		}
		cost.Took, cost.CPU = cost.Took+time.Since(began), cost.CPU+cpu
	}
	return cost, nil
}

// batch returns the processor time that the program took.
func (m *Machine) batch(ctx context.Context, program, lines string) (cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, program, "-batch", "-")
	cmd.Stdin = strings.NewReader(lines)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := m.Do(cmd.Start); err != nil {
		return 0, err
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%s -batch: %w: %.300s", program, err, out.String())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
