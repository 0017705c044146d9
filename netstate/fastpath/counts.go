package fastpath

import (
	"errors"
	"fmt"
	"time"

	"github.com/twill-net/twill/netstate"
)

// Count is how many packets of one direction had one result.
type Count struct {
	Program        netstate.ProgramName
	Result         string // a netstate.ShortcutMode, or why the packet was left to the kernel
	Fast           bool   // the program sent it on
	Packets, Bytes uint64 // a packet of many segments counts once
}

// Counts is what the programs did since their maps were made.
type Counts struct {
	Results   []Count // in the same order each time, also those of no packets
	Refreshes uint64  // of conntrack entries' timeouts
	Failures  uint64  // of functions of the kernel that programs call, where none is expected
}

// count is struct count of bpf/maps.h.
type count struct{ Packets, Bytes uint64 }

// Counts reads what the programs did.
func (p *Provider) Counts() (c Counts, err error) {
	names, err := results()
	if err != nil {
		return c, err
	}
	var processors []count
	for i, program := range programs {
		for j, name := range names {
			if err := p.maps[countsMap].Lookup(uint32(i*len(names)+j), &processors); err != nil {
				return c, fmt.Errorf("read the fast path's counts: %w", err)
			}
			var sum count
			for _, one := range processors {
				sum.Packets += one.Packets
				sum.Bytes += one.Bytes
			}
			switch name {
			case "refreshed":
				c.Refreshes += sum.Packets
			case "failed":
				c.Failures += sum.Packets
			default:
				c.Results = append(c.Results, Count{program, name, j < len(modes), sum.Packets, sum.Bytes})
			}
		}
	}
	return c, nil
}

// Extend lets the programs work for ten minutes more. Without it they leave all packets to the kernel.
func (p *Provider) Extend() error {
	t, err := now()
	if err == nil {
		err = p.maps[clockMap].Put(deadlineClock, t+uint64(lifetime))
	}
	if err != nil {
		return fmt.Errorf("extend the fast path's time: %w", err)
	}
	return nil
}

// Pause makes the programs leave all packets to the kernel until then.
func (p *Provider) Pause(until time.Time) error {
	t, err := now()
	if err == nil {
		left := time.Until(until)
		if left < 0 {
			t, left = 0, 0
		}
		err = p.maps[clockMap].Put(pausedClock, t+uint64(left))
	}
	if err != nil {
		return fmt.Errorf("pause the fast path: %w", err)
	}
	return nil
}

// Paused returns until when the fast path is paused, or the zero time.
func (p *Provider) Paused() time.Time { return p.time(pausedClock) }

// Deadline returns when the programs leave all packets to the kernel if nobody calls Extend, or the zero time if they do.
func (p *Provider) Deadline() time.Time { return p.time(deadlineClock) }

// time returns a time of the map if it is in the future, else the zero time.
func (p *Provider) time(clock uint32) time.Time {
	var until uint64
	t, err := now()
	if err = errors.Join(err, p.maps[clockMap].Lookup(clock, &until)); err != nil || until <= t {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(until - t)).Round(time.Second)
}
