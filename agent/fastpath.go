package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/netstate"
)

// FastPath is what runs the fast path's programs. Its objects are read and written as the others are.
type FastPath interface {
	// Extend lets the programs work for some minutes more. Without it they come to leave all packets to the kernel.
	Extend() error
	// Blocked returns why no packet may take the fast path now, empty if packets may.
	Blocked() string
}

// FastPathStatus says whether packets of pods take the fast path on this node.
type FastPathStatus struct {
	On      bool     `json:"on"`
	Devices []string `json:"devices,omitempty"` // that programs are attached to
	Why     string   `json:"why,omitempty"`     // it is off
	// Beside are pods' ports without it, and why.
	Beside map[string]string `json:"beside,omitempty"`
}

func (s FastPathStatus) String() string {
	if s.On {
		text := "on: " + strings.Join(s.Devices, " ")
		for _, port := range slices.Sorted(maps.Keys(s.Beside)) {
			text += fmt.Sprintf("; but not for %s (%s)", port, s.Beside[port])
		}
		return text
	}
	return "off: " + s.Why
}

// liberal has conntrack believe packets whatever came before: it does not see those that take the fast path, so others of
// the same connection are outside of the windows that it knows.
var liberal = netstate.Sysctl{Name: "net/netfilter/nf_conntrack_tcp_be_liberal", Value: "1"}

// fastPath adds the fast path of what is wanted.
func (p Planner) fastPath(want netstate.State, node backend.Node) {
	if !p.Shortcuts.On || node.FastPathOff != "" {
		return
	}
	if fast := backend.Shortcuts(want, node, p.Base.Bridge, p.Shortcuts.SkipMark); len(fast) > 0 {
		want.Merge(fast)
		want.Add(liberal)
	}
}

// refusal is that the kernel refused something of the fast path. All of it is off for a while then: it is of no use
// without one of its parts, and without conntrack's it does harm.
type refusal struct {
	why   string
	until time.Time
}

// afterRefusal is how long the fast path is off after a refusal.
const afterRefusal = resync - time.Second

// carries returns why an underlay cannot carry the fast path, empty if it can. Programs write Ethernet headers, and do not
// know a VRF's routes.
func carries(underlays []backend.Underlay, interfaces []netstate.Interface) string {
	for _, u := range underlays {
		i := slices.IndexFunc(interfaces, func(i netstate.Interface) bool { return i.Name == u.Dev })
		switch {
		case i < 0:
		case !interfaces[i].Ethernet:
			return "the underlay " + u.Dev + " is not an Ethernet device"
		case interfaces[i].VRF != "":
			return "the underlay " + u.Dev + " is in the VRF " + interfaces[i].VRF
		}
	}
	return ""
}

// fastPathOff returns why no packet may take the fast path, beyond what the underlays are.
func (a *Agent) fastPathOff() string {
	if a.FastPath == nil {
		return "this agent has no programs for it"
	}
	why := a.fastPathBlocked()
	a.blocked.Store(&why)
	if why != "" {
		return why
	}
	if r := a.loop.refusal; time.Now().Before(r.until) {
		return r.why
	}
	return ""
}

// fastPathBlocked returns what may change at any time, without the kernel's word.
func (a *Agent) fastPathBlocked() string {
	if why := a.FastPath.Blocked(); why != "" || a.Policies == nil {
		return why
	}
	if _, err := a.Policies.Denied(); err != nil {
		return err.Error()
	}
	return ""
}

// leaveDenied keeps pods off the fast path that have an open connection which policies deny, so that the rules judge its packets.
func (a *Agent) leaveDenied(interfaces []netstate.Interface) {
	if a.Policies == nil {
		return
	}
	denied, _ := a.Policies.Denied() // fastPathBlocked turns all of it off while there is an error
	for n, i := range interfaces {
		if slices.ContainsFunc(i.Port.Addresses(), func(addr netip.Addr) bool { return denied[addr] }) {
			interfaces[n].Beside = cmp.Or(i.Beside, "policies deny an open connection of the pod")
		}
	}
}

// isFast reports whether a change is about the fast path alone: without it packets go the kernel's way.
func isFast(c netstate.Change) bool {
	key := c.Key()
	return key.Kind >= netstate.KindShortcut && key.Kind <= netstate.KindProgram || key == liberal.Key()
}

// finishFastPath lets the programs work on after a reconcile that went well, and says how the fast path is.
func (a *Agent) finishFastPath(node backend.Node, r result) {
	if !a.Shortcuts.On {
		return
	}
	s := FastPathStatus{Why: node.FastPathOff}
	if s.Why == "" {
		s = fastPathStatus(r)
		s.Beside = node.Beside
	}
	if slices.ContainsFunc(r.left, isFast) && node.FastPathOff == "" {
		s = FastPathStatus{Why: refused(r)}
		a.loop.refusal = refusal{s.Why, time.Now().Add(afterRefusal)}
		a.trigger()
	}
	if s.On && !r.degraded() {
		if err := a.FastPath.Extend(); err != nil {
			s = FastPathStatus{Why: "extend it: " + err.Error()}
		}
	}
	before := a.status.updateFastPath(s)
	if before != nil && before.String() == s.String() {
		return
	}
	level := slog.LevelInfo
	if !s.On && s.Why != noWay {
		level = slog.LevelWarn
	}
	a.Log.Log(context.Background(), level, "the fast path is "+s.String(), "node", a.Node)
}

// fastPathStatus returns how the fast path is where nothing forbids one.
func fastPathStatus(r result) FastPathStatus {
	var s FastPathStatus
	for key := range r.want {
		if key.Kind == netstate.KindProgram {
			s.On, s.Devices = true, append(s.Devices, key.Name)
		}
	}
	if !s.On {
		return FastPathStatus{Why: noWay}
	}
	slices.Sort(s.Devices)
	return s
}

// noWay is why the fast path is off before peers are there.
const noWay = "no peer is reached in a way that it knows"

// refused returns what the kernel refused of the fast path, and why if that is known.
func refused(r result) string {
	for _, c := range r.left {
		for line := range strings.Lines(fmt.Sprint(r.err)) {
			if isFast(c) && strings.HasPrefix(line, c.String()+": ") {
				return strings.TrimSpace(line)
			}
		}
	}
	return fmt.Sprint(r.left[slices.IndexFunc(r.left, isFast)])
}

// blockedInterval is how often the loop is woken if something forbids the fast path that the kernel does not announce.
const blockedInterval = 3 * time.Second

// watchFastPath wakes the loop when something has come or gone that forbids the fast path, to all pods or to some, whoever the
// loop heard of it from.
func (a *Agent) watchFastPath(ctx context.Context) error {
	var changed <-chan struct{}
	if a.Policies != nil {
		changed = a.Policies.DeniedChanged()
	}
	ticker := time.NewTicker(blockedInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			a.trigger()
		case <-ticker.C:
			if now, seen := a.fastPathBlocked(), a.blocked.Load(); seen != nil && now != *seen {
				a.trigger()
			}
		}
	}
}
