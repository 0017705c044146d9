package e2e

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// TestClouds is one life of a cluster in each cloud: the router's kernel follows the routing tables that real agents write
// through the provider's API.
func TestClouds(t *testing.T) {
	for _, test := range []struct{ backend, family string }{
		{"aws-vpc", lab.IPv4}, {"aws-vpc", lab.Dual}, {"gce", lab.IPv4}, {"ali-vpc", lab.IPv4},
	} {
		t.Run(test.backend+"/"+test.family, func(t *testing.T) {
			t.Parallel()
			name := "e2ecloud" + strings.ReplaceAll(test.backend, "-", "") + test.family
			c := cluster{t, labtest.Start(t, lab.Spec{Name: name, Backend: test.backend, Family: test.family, Store: lab.File, Nodes: 3, Pods: 1})}
			for _, step := range []struct {
				name string
				do   func(cluster)
			}{
				{"every pod reaches every pod", cluster.matrix},
				{"the packets leave as they are", cluster.route},
				{"TCP keeps the pod's address", cluster.transfer},
				{"outside sees the node's address", cluster.masquerade},
				{"the MTU is the underlay's", cluster.mtu},
				{"an agent that starts again writes nothing", cluster.cloudRestart},
				{"others' routes stay", cluster.cloudForeign},
				{"a dry run says what the agent would write", cluster.cloudDryRun},
				{"an API that is away hurts nobody", cluster.cloudAway},
				{"a node joins and leaves", cluster.cloudJoin},
				{"cleanup takes the node's route away", cluster.cloudCleanup},
			} {
				if !c.Run(step.name, func(t *testing.T) { step.do(cluster{t, c.lab}) }) {
					return
				}
			}
		})
	}
}

// cloudRoutes are the routes that the cloud has to a node, by destination.
func (c cluster) cloudRoutes(n *lab.Node) (to []cloud.Route) {
	c.Helper()
	all, err := c.lab.CloudRoutes(c.Context())
	c.must(err)
	for _, r := range all {
		if slices.Contains(n.Subnets(), r.Dst) {
			to = append(to, r)
		}
	}
	return to
}

// writes is how many routes the node's agent has written, as it logged it.
func (c cluster) writes(n *lab.Node) int {
	c.Helper()
	text, err := n.Exec(c.Context(), "cat", n.Log())
	c.must(err)
	return strings.Count(text, "write a route of the cloud")
}

// looked is a metric of an agent that has ended a look at the cloud's routes.
var looked = regexp.MustCompile(`(?m)^twill_provider_calls_total\{result="read"\} [1-9]`)

func (c cluster) cloudRestart() {
	n := c.lab.Nodes()[0]
	before := c.writes(n)
	c.must(n.RestartAgent(c.Context()))
	c.must(n.KillAgent())
	c.must(n.StartAgent(c.Context()))
	testwait.Nil(c, "the agent's first look at the cloud", func() error {
		said, err := n.Ask(c.Context(), "/metrics")
		if err == nil && !looked.MatchString(said) {
			err = errors.New("it counts no call")
		}
		return err
	})
	if after := c.writes(n); after != before || len(c.cloudRoutes(n)) != len(n.Subnets()) {
		c.Errorf("%d writes before, %d after; routes %v", before, after, c.cloudRoutes(n))
	}
	c.matrix()
}

// cloudForeign: an agent heals what is its own, and touches nothing else.
func (c cluster) cloudForeign() {
	n := c.lab.Nodes()[0]
	all, err := c.lab.CloudRoutes(c.Context())
	c.must(err)
	own := c.cloudRoutes(n)
	foreign := own[0]
	foreign.Dst, foreign.Target, foreign.Name = netip.MustParsePrefix("172.31.0.0/16"), "igw-1", "somebody"
	c.must(c.lab.SetCloudRoutes(c.Context(), append(slices.DeleteFunc(all, func(r cloud.Route) bool { return slices.Contains(own, r) }), foreign)))
	c.must(n.RestartAgent(c.Context()))
	c.matrix()
	all, err = c.lab.CloudRoutes(c.Context())
	c.must(err)
	if !slices.ContainsFunc(all, func(r cloud.Route) bool { return r.Dst == foreign.Dst && r.Target == foreign.Target }) || len(c.cloudRoutes(n)) != len(own) {
		c.Errorf("routes %v", all)
	}
}

func (c cluster) cloudDryRun() {
	n := c.lab.Nodes()[0]
	c.must(n.StopAgent(c.Context()))
	own := c.cloudRoutes(n)
	all, err := c.lab.CloudRoutes(c.Context())
	c.must(err)
	c.must(c.lab.SetCloudRoutes(c.Context(), slices.DeleteFunc(all, func(r cloud.Route) bool { return r.Dst == own[0].Dst })))
	out := c.agent(n, n.DryRun()...)
	if want := own[0].Dst.String() + " via " + own[0].Target; !strings.Contains(out, "+ ") || !strings.Contains(out, want) {
		c.Errorf("the dry run says %q, want %q", out, want)
	}
	if got := c.cloudRoutes(n); len(got) != len(own)-1 {
		c.Errorf("the dry run wrote: %v", got)
	}
	c.must(n.StartAgent(c.Context()))
	c.matrix()
}

// agent runs a program as the lab runs the node's agent.
func (c cluster) agent(n *lab.Node, command ...string) string {
	c.Helper()
	out, err := n.Exec(c.Context(), append(append([]string{"env"}, c.lab.AgentEnvironment()...), command...)...)
	if err != nil {
		c.Fatalf("%v: %v\n%s", command, err, out)
	}
	return out
}

// cloudAway: while no request is answered pods talk and nodes stay ready, also one whose agent starts again.
func (c cluster) cloudAway() {
	c.must(c.lab.BreakCloud(c.Context(), fake.Faults{Away: true}))
	n := c.lab.Nodes()[0]
	c.must(n.RestartAgent(c.Context()))
	testwait.Nil(c, "an error in /status", func() error {
		said, err := n.Ask(c.Context(), "/status")
		if err == nil && !strings.Contains(said, `"error"`) {
			err = errors.New(said)
		}
		return err
	})
	c.must(n.Probe(c.Context(), "/readyz"))
	c.matrix()
	c.must(c.lab.BreakCloud(c.Context(), fake.Faults{}))
}

func (c cluster) cloudJoin() {
	n, err := c.lab.Join(c.Context())
	c.must(err)
	c.matrix()
	subnets := n.Subnets()
	c.must(n.Leave(c.Context()))
	all, err := c.lab.CloudRoutes(c.Context())
	c.must(err)
	dead := 0
	for _, r := range all {
		if slices.Contains(subnets, r.Dst) {
			dead++
		}
	}
	if dead != len(subnets) { // the janitor waits for ten minutes: cloud.TestJanitor
		c.Errorf("%d routes to the node that left, want %d", dead, len(subnets))
	}
	c.matrix()
}

func (c cluster) cloudCleanup() {
	n := c.lab.Nodes()[0]
	c.must(n.StopAgent(c.Context()))
	foreign := len(c.cloudRoutes(c.lab.Nodes()[1]))
	out := c.agent(n, n.CleanupCommand()...)
	if left := c.cloudRoutes(n); len(left) > 0 || !strings.Contains(out, "via ") {
		c.Errorf("left %v; it says\n%s", left, out)
	}
	if len(c.cloudRoutes(c.lab.Nodes()[1])) != foreign {
		c.Error("another node's route is gone")
	}
	if _, err := c.pod(2).Ping(context.Background(), host.Ping{To: c.pod(1).Addrs[0], Timeout: time.Second}); err == nil {
		c.Error("pods of the node are still reached")
	}
}
