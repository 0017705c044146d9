package script

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/lab"
)

// traffic is what goes on between all pods while a script changes their cluster.
type traffic struct {
	streams []ping
	talks   []talk
	servers []io.Closer
	random  *rand.Rand // draws the order and the pace of rollouts
}

// ping is the stream of one pod to another.
type ping struct {
	pair
	*host.Stream
	since host.Mark // of the last losses
}

// talk is the TCP connection of one pod to another.
type talk struct {
	pair
	*host.Talk
}

// pair is who sends to whom.
type pair struct {
	from, to string // NODE/POD
	addr     netip.Addr
}

// some are pairs of these pods, and no pods stand for all, or of those the ones that use IPv6.
type some struct {
	pods []string
	ipv6 bool
}

func (s some) has(p pair) bool {
	return (len(s.pods) == 0 || slices.Contains(s.pods, p.from) && slices.Contains(s.pods, p.to)) && (!s.ipv6 || p.addr.Is6())
}

func (p pair) String() string { return p.from + " to " + p.addr.String() }

// talkPort is the port of the servers in pods that give back what they get.
const talkPort = 7007

// timeOfDay is how agents' logs write it.
const timeOfDay = "15:04:05.000"

const (
	pingEvery = 5 * time.Millisecond
	talkEvery = 20 * time.Millisecond
	talkSize  = 4 << 10 // bytes
)

func (r *run) changes() map[string]func() verb {
	return map[string]func() verb{"traffic": r.trafficVerb, "losses": r.losses, "rollout": r.rollout}
}

func (r *run) trafficVerb() verb {
	size := 0
	return verb{
		args:    "[-size BYTES]",
		summary: "from now on each pod pings each other one 200 times a second, and a TCP connection between them carries 4 kB fifty times",
		flags:   func(fs *flag.FlagSet) { fs.IntVar(&size, "size", 0, "") },
		do: func(c *call) error {
			if r.lab == nil {
				return errNoLab
			}
			for _, to := range r.lab.Pods() {
				for _, at := range to.Addrs {
					server, err := to.Echo(context.Background(), "tcp", netip.AddrPortFrom(at, talkPort))
					if err != nil {
						return err
					}
					r.traffic.servers = append(r.traffic.servers, server)
					if err := r.sendTo(c.ctx, to, at, size); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
}

// sendTo begins what all other pods send to an address of one.
func (r *run) sendTo(ctx context.Context, to *lab.Pod, at netip.Addr, size int) error {
	for _, from := range r.lab.Pods() {
		if from.ID() == to.ID() || !hasFamily(from, at) {
			continue
		}
		s, err := from.StreamOf(size, at, pingEvery)
		if err != nil {
			return err
		}
		p := pair{from.ID(), to.ID(), at}
		r.traffic.streams = append(r.traffic.streams, ping{p, s, s.Mark()})
		t, err := from.Talk(ctx, netip.AddrPortFrom(at, talkPort), talkSize, talkEvery)
		if err != nil {
			return err
		}
		r.traffic.talks = append(r.traffic.talks, talk{p, t})
	}
	return nil
}

// hasFamily reports whether a pod has an address of another one's family.
func hasFamily(p *lab.Pod, other netip.Addr) bool {
	return slices.ContainsFunc(p.Addrs, func(a netip.Addr) bool { return a.Is4() == other.Is4() })
}

func (r *run) losses() verb {
	var of some
	return verb{
		args:  "[-6] MOST [NODE/POD...]",
		least: 1,
		flags: func(fs *flag.FlagSet) { fs.BoolVar(&of.ipv6, "6", false, "") },
		summary: "since the last time, no pod may have lost more than MOST of its pings to another one, and no TCP connection " +
			"may have ended; of these pods alone, if there are any, and with -6 of IPv6 alone",
		do: func(c *call) error {
			most := 0
			if _, err := fmt.Sscanf(c.args[0], "%d", &most); err != nil {
				return fmt.Errorf("losses %q: want a number of pings", c.args[0])
			}
			of.pods = c.args[1:]
			if !slices.ContainsFunc(r.traffic.streams, func(p ping) bool { return of.has(p.pair) }) {
				return errors.New("nothing is sent: begin with the command traffic, and name pods that it has found")
			}
			sum, worst, err := r.lossesSince(c.ctx, of)
			silence, ended := r.silence(of)
			c.printf("%d of %d pings lost; of one pod to another: %d, %d ms; TCP silent: %d ms\n", sum.Lost, sum.Sent,
				worst.Lost, (time.Duration(worst.Run) * pingEvery).Milliseconds(), silence.Milliseconds())
			if worst.Lost > most {
				ended = errors.Join(fmt.Errorf("%d pings of one pod to another are lost: want %d at most", worst.Lost, most), err, ended)
			}
			return ended
		},
	}
}

// lossesSince returns what some streams together, and the worst of them, have lost since the last time.
func (r *run) lossesSince(ctx context.Context, of some) (sum, worst host.Loss, err error) {
	for i, s := range r.traffic.streams {
		if !of.has(s.pair) {
			continue
		}
		now := s.Mark()
		loss, failed := s.Between(ctx, s.since, now)
		r.traffic.streams[i].since = now
		sum.Sent, sum.Lost = sum.Sent+loss.Sent, sum.Lost+loss.Lost
		worst.Lost, worst.Run = max(worst.Lost, loss.Lost), max(worst.Run, loss.Run)
		if loss.Lost > 0 {
			err = errors.Join(err, failed, fmt.Errorf("%s: %v, the most in a row at %s", s.pair, loss, loss.First.UTC().Format(timeOfDay)))
		}
	}
	return sum, worst, err
}

// silence returns the longest silence of some TCP connections since the last time.
func (r *run) silence(of some) (longest time.Duration, ended error) {
	for _, t := range r.traffic.talks {
		if !of.has(t.pair) {
			continue
		}
		silence, err := t.Silence()
		longest, ended = max(longest, silence), errors.Join(ended, err)
	}
	return longest, ended
}

// end stops all that is sent.
func (t *traffic) end() {
	for _, s := range t.streams {
		s.Close()
	}
	for _, t := range t.talks {
		t.Close()
	}
	for _, s := range t.servers {
		s.Close()
	}
}

func (r *run) rollout() verb {
	var conf string
	var flags values
	return verb{
		args:    "[-net-conf FILE] [-agent-flag --FLAG=VALUE]... [NODE...]",
		summary: "restart agents one by one, with another net-conf.json, and with these flags in place of the last rollout's",
		flags: func(fs *flag.FlagSet) {
			fs.StringVar(&conf, "net-conf", "", "")
			fs.Var(&flags, "agent-flag", "")
		},
		do: func(c *call) error {
			nodes, err := r.toRestart(c.args)
			if err != nil {
				return err
			}
			if conf != "" {
				data, err := os.ReadFile(c.state.Path(conf))
				if err != nil {
					return err
				}
				if err := r.lab.SetNetConf(c.ctx, data); err != nil {
					return err
				}
			}
			if err := r.lab.SetAgentFlags(flags); err != nil {
				return err
			}
			for _, n := range nodes {
				if err := n.RestartAgent(c.ctx); err != nil {
					return err
				}
				if err := r.pause(c.ctx); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// toRestart returns nodes in the order in which a rollout restarts their agents: as they are named, or all in a drawn order.
func (r *run) toRestart(names []string) ([]*lab.Node, error) {
	if len(names) > 0 {
		return r.nodesOf(names)
	}
	nodes, err := r.nodesOf([]string{"all"})
	if err == nil && r.Seed != 0 {
		r.rand().Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	}
	return nodes, err
}

// pause waits as a rollout does for its next batch: two seconds, or what is drawn.
func (r *run) pause(ctx context.Context) error {
	wait := 2 * time.Second
	if r.Seed != 0 {
		wait = time.Duration(500+r.rand().IntN(2500)) * time.Millisecond
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
		return nil
	}
}

func (r *run) rand() *rand.Rand {
	if r.traffic.random == nil {
		r.traffic.random = rand.New(rand.NewPCG(r.Seed, 0))
	}
	return r.traffic.random
}
