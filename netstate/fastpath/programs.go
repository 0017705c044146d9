package fastpath

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/netstate"
)

// attached is what has a say in a device's packets where they come in, or leave.
type attached struct {
	qdisc string // where they come in
	filters
	hooks []hook // ours
}

// words are the parts of a text.
type words []string

func (w *words) add(when bool, format string, args ...any) {
	if when {
		*w = append(*w, fmt.Sprintf(format, args...))
	}
}

// survey is what was found on all devices at once.
type survey struct {
	qdiscs map[uint32]string // where packets come in, by index of device
	links  []hook            // ours
	chains []chain
}

// attached returns what a device has.
func (p *Provider) attached(index uint32, s survey) (a attached, err error) {
	a.qdisc = s.qdiscs[index]
	if a.qdisc == "clsact" {
		if a.filters, err = p.filters(index, parents...); err != nil {
			return a, err
		}
	}
	if p.tcx {
		err = errors.Join(p.addHooks(&a, index, ebpf.AttachTCXIngress, s.links), p.addHooks(&a, index, ebpf.AttachTCXEgress, s.links))
	}
	name, _ := p.names.name(index)
	for _, c := range s.chains {
		if c.at(name) {
			a.other = append(a.other, c.text)
		}
	}
	return a, err
}

// observePrograms adds the programs that are attached. Unless all devices are to be asked, a link without a pin is not
// found.
func (p *Provider) observePrograms(state netstate.State, all bool) error {
	found, err := p.survey()
	if err != nil {
		return err
	}
	linked := map[uint32]bool{}
	for _, h := range found.links {
		if _, up := found.qdiscs[h.index]; !up && h.index != 0 {
			found.qdiscs[h.index] = ""
		}
		linked[h.index] = true
	}
	for index, kind := range found.qdiscs {
		ask := kind == "clsact" || linked[index] || all && p.tcx
		dev, there := p.names.name(index)
		if !ask || !there {
			continue
		}
		a, err := p.attached(index, found)
		switch {
		case err == nil && len(a.ours)+len(a.hooks) > 0:
			state.Add(p.decode(dev, a))
		case err != nil:
			if _, there := p.names.name(index); there {
				return fmt.Errorf("device %s: %w", dev, err)
			}
		}
	}
	return nil
}

// survey asks for what is on all devices. The thread must be in the namespace: the kernel takes the index of a link's device
// for one of the thread's.
func (p *Provider) survey() (s survey, err error) {
	if p.tcx {
		here, err := namespace()
		if err != nil {
			return s, err
		}
		if want := filepath.Base(p.folder); here != want {
			return s, fmt.Errorf("this thread is in the network namespace %s: want %s, in which the fast path was opened",
				here, want)
		}
		if s.links, err = hooks(p.folder); err != nil {
			return s, err
		}
	}
	if s.chains, err = p.chains(); err != nil {
		return s, err
	}
	s.qdiscs, err = p.qdiscs()
	return s, err
}

// decode returns the program of a device. One that is not ours makes it differ from what is wanted, and attach refuses to
// stand beside it.
func (p *Provider) decode(dev string, a attached) netstate.Program {
	o := netstate.Program{Dev: dev}
	var extra words
	if len(a.hooks) > 0 {
		o.Name, extra = p.decodeHooks(a.hooks)
		extra.add(len(a.ours) > 0, "and %d filters", len(a.ours))
	} else {
		o.Name, extra = p.decodeFilters(a.ours)
		extra.add(p.tcx, "by cls_bpf")
	}
	extra.add(p.tcx && a.qdisc == "ingress", "beside a queueing discipline ingress")
	extra.add(len(a.other) > 0, "beside %s", strings.Join(a.other, ", "))
	o.Extra = strings.Join(extra, " ")
	return o
}

// attach puts a program on a device, in the place of any that it has.
func (p *Provider) attach(o netstate.Program) error {
	if p.programs[string(o.Name)] == nil {
		return fmt.Errorf("there is no program %s", o.Name)
	}
	index, err := p.names.index(o.Dev)
	if err != nil {
		return err
	}
	found, err := p.survey()
	if err != nil {
		return err
	}
	if kind := found.qdiscs[index]; kind != "clsact" && kind != "" {
		why := "beside which there can be no clsact"
		if p.tcx {
			why = "whose filters the fast path would pass by"
		}
		return fmt.Errorf("device %s has a queueing discipline %s of somebody else, %s", o.Dev, kind, why)
	}
	have, err := p.attached(index, found)
	if err != nil {
		return err
	}
	if len(have.other) > 0 {
		return fmt.Errorf("device %s has filters of somebody else, which the fast path would pass by: %s", o.Dev,
			strings.Join(have.other, ", "))
	}
	if p.tcx {
		return p.putHook(index, o, have)
	}
	return p.putFilter(index, o, have)
}

// detach takes our programs from a device. A qdisc of ours stays until Clean: the kernel drops what the device is to send
// while a qdisc comes or goes, also one for what comes in.
func (p *Provider) detach(o netstate.Program) error {
	index, err := p.names.index(o.Dev)
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	found, err := p.survey()
	if err != nil {
		return err
	}
	have, err := p.attached(index, found)
	if err != nil {
		return err
	}
	for _, h := range have.hooks {
		if err := h.remove(); err != nil {
			return err
		}
	}
	return p.deleteFilters(have.ours)
}
