package target

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twill-net/twill/doctor/capture"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/choose"
)

// Capturing says what is captured.
type Capturing struct {
	Src, Dst string        // pods, nodes or addresses, as the target knows them
	During   time.Duration // how long; a cluster's nodes end by themselves
}

// Capture writes the packets between two addresses that this node sees.
func (h *here) Capture(ctx context.Context, c Capturing, w io.Writer, say func(string)) error {
	src, err := netip.ParseAddr(c.Src)
	if err != nil {
		return fmt.Errorf("source %q: want an address of a pod, of this node or of a peer", c.Src)
	}
	dst, err := netip.ParseAddr(c.Dst)
	if err != nil {
		return fmt.Errorf("destination %q: want an address of a pod, of this node or of a peer", c.Dst)
	}
	place := watch.Place{Host: cmp.Or(h.name, h.files.NodeName()), Do: h.do}
	return Record(ctx, c.During, capture.Options{Sources: []capture.Source{{Place: place}}, Filter: capture.Filter{{src}, {dst}},
		About: place.Host + ", " + c.Src + " and " + c.Dst}, w, say)
}

// Capture writes the packets between two ends of the lab: on all devices of their way if both are pods, else on all devices.
func (t *labTarget) Capture(ctx context.Context, c Capturing, w io.Writer, say func(string)) error {
	l, err := t.Open()
	if err != nil {
		return err
	}
	o, err := choose.Capture(l, way(l, c.Src, c.Dst), []string{c.Src, c.Dst})
	if err != nil {
		return err
	}
	return Record(ctx, c.During, o, w, say)
}

// way returns the hosts between two pods, none if one of the ends is no pod.
func way(l *lab.Lab, src, dst string) (hosts []string) {
	a, errA := l.FindPod(src)
	b, errB := l.FindPod(dst)
	if errA != nil || errB != nil {
		return nil
	}
	for _, host := range []string{a.ID(), a.Node.Name, "underlay", b.Node.Name, b.ID()} {
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// Record captures on this machine for some time; 0: until the context ends. It says how it goes.
func Record(ctx context.Context, during time.Duration, o capture.Options, w io.Writer, say func(string)) error {
	if during > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, during)
		defer cancel()
	}
	s, err := capture.New(o).Run(ctx, w, func(s capture.Summary) {
		if s.NoReasons != "" {
			say("without the kernel's reasons for drops: " + s.NoReasons)
		}
		say(fmt.Sprintf("capturing on %d devices of %d hosts; ctrl-C ends it", s.Devices, s.Hosts))
	})
	if err != nil {
		return err
	}
	say(fmt.Sprintf("%d packets on %d devices, and why the kernel dropped %d", s.Packets, s.Devices, s.Dropped))
	if s.Lost > 0 {
		say(fmt.Sprintf("%d more came faster than they could be read: name fewer devices", s.Lost))
	}
	return nil
}

// graceTime is how much longer than asked for a node's stream may take.
const graceTime = 30 * time.Second

// Capture merges what the nodes of the two ends write.
func (c cluster) Capture(ctx context.Context, how Capturing, w io.Writer, say func(string)) error {
	if how.During <= 0 {
		return errors.New("--for: a cluster's nodes cannot see that you stop: want a duration")
	}
	from, err := c.findEnd(ctx, how.Src, netip.Addr{})
	if err != nil {
		return err
	}
	to, err := c.findEnd(ctx, how.Dst, from.addr)
	if err != nil {
		return err
	}
	var agents []remote
	nodes := slices.Compact([]string{from.node, to.node})
	for _, node := range nodes {
		a, err := c.agent(ctx, node)
		if err != nil {
			return err
		}
		agents = append(agents, a)
	}
	ctx, cancel := context.WithTimeout(ctx, how.During+graceTime)
	defer cancel()
	say(fmt.Sprintf("capturing on %s for %v; ctrl-C ends it, without the last seconds", strings.Join(nodes, " and "), how.During))
	var group errgroup.Group
	var streams []io.Reader
	for _, a := range agents {
		read, write := io.Pipe()
		defer read.Close() // who writes into it ends, whatever failed
		streams = append(streams, read)
		group.Go(func() error {
			err := a.stream(ctx, write, say, "capture", "--output=-", "--for="+how.During.String(), from.addr.String(), to.addr.String())
			write.Close()
			return err
		})
	}
	err = capture.Merge(w, "between "+how.Src+" and "+how.Dst, streams...)
	for _, s := range streams {
		s.(*io.PipeReader).Close()
	}
	err = errors.Join(err, group.Wait())
	if err != nil && Interrupted(ctx) && !errors.Is(ctx.Err(), context.DeadlineExceeded) { // in the middle of a packet
		return nil
	}
	return err
}

// stream runs twillctl on the node, writes its output as it comes, and says what it says.
func (r remote) stream(ctx context.Context, w io.Writer, say func(string), args ...string) error {
	l := &said{node: r.node, say: say}
	cmd := r.command(ctx, append([]string{"exec", "--namespace=" + r.namespace, r.name, "--container=" + AgentContainer, "--", "twillctl"}, args...)...)
	cmd.Stdout, cmd.Stderr = w, l
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ask node %s: %w: %s", r.node, err, l.last)
	}
	return nil
}

// said says the lines that a node prints, as many as a capture needs.
type said struct {
	node string
	say  func(string)
	last string // line
	left []byte // of a line that has not ended
	n    int
}

// maxSaid is how many lines a node may say, and of how many bytes each.
const maxSaid, maxLine = 20, 1000

func (s *said) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		s.left = append(s.left, line[:min(len(line), max(0, maxLine-len(s.left)))]...)
		if rest = after; !ended {
			break
		}
		if s.last, s.left = string(s.left), nil; s.n < maxSaid {
			s.say(s.node + ": " + s.last)
		}
		s.n++
	}
	return len(b), nil
}

// Capture is not for one node of a cluster: a capture asks for its ends.
func (r remote) Capture(context.Context, Capturing, io.Writer, func(string)) error {
	return errors.New("a capture names its two ends, and no node")
}
