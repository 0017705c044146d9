package script

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/packet"
)

func (r *run) frames() map[string]func() verb {
	return map[string]func() verb{"arp": r.arp, "capture": r.capture}
}

var arpOperations = map[string]uint16{"request": packet.ARPRequest, "reply": packet.ARPReply}

func (r *run) arp() verb {
	to := ""
	return verb{
		args:    "[-to MAC] request|reply HOST DEVICE SENDER TARGET",
		least:   5,
		summary: "send an ARP packet that names a sender's address, true or not, and the target's",
		detail: []string{
			"It comes from the device's own MAC, and goes to everybody, or with -to to one.",
			"SENDER and TARGET are IPv4 addresses: 0.0.0.0 and another is a probe, twice the same an announcement.",
		},
		flags: func(fs *flag.FlagSet) { fs.StringVar(&to, "to", "", "") },
		do: func(c *call) error {
			a := packet.ARP{Operation: arpOperations[c.args[0]]}
			if a.Operation == 0 {
				return fmt.Errorf("arp %q: want request or reply", c.args[0])
			}
			h, err := r.find(c.args[1])
			if err != nil {
				return err
			}
			if a.Sender, err = parseIPv4(c.args[3]); err != nil {
				return fmt.Errorf("sender %w", err)
			}
			if a.Target, err = parseIPv4(c.args[4]); err != nil {
				return fmt.Errorf("target %w", err)
			}
			if to != "" {
				if a.TargetMAC, err = net.ParseMAC(to); err != nil || len(a.TargetMAC) != 6 {
					return fmt.Errorf("-to %q: want a MAC of six bytes", to)
				}
			}
			return h.Do(func() error { return packet.SendARP(c.args[2], a) })
		},
	}
}

func parseIPv4(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || !a.Is4() {
		return a, fmt.Errorf("%q: want an IPv4 address", text)
	}
	return a, nil
}

// A capture ends when the device has been quiet for as long as an answer may take, or never is.
const (
	captureQuiet = 300 * time.Millisecond
	captureLimit = 3 * time.Second
)

func (r *run) capture() verb {
	return verb{
		args:    "HOST DEVICE COMMAND [argument...]",
		least:   3,
		summary: "run another command, and print the frames that a device sees until it is quiet, ARP field by field",
		do: func(c *call) error {
			v, ok := r.verbs()[c.args[2]]
			if !ok {
				return fmt.Errorf("%q cannot be captured: want a command of the lab", c.args[2])
			}
			h, err := r.find(c.args[0])
			if err != nil {
				return err
			}
			var device *net.Interface
			err = h.Do(func() (err error) {
				device, err = net.InterfaceByName(c.args[1])
				return err
			})
			if err != nil {
				return fmt.Errorf("%s on %s: %w", c.args[1], c.args[0], err)
			}
			w, err := watch.Start(watch.Options{Places: []watch.Place{{Host: c.args[0], Do: h.Do}}})
			if err != nil {
				return err
			}
			defer w.Close()
			err = c.run(v(), c.args[3:])
			return errors.Join(err, c.printFrames(w, device.Index))
		},
	}
}

// printFrames prints what a device sees until it is quiet.
func (c *call) printFrames(w *watch.Watch, index int) error {
	for end := time.Now().Add(captureLimit); time.Now().Before(end); {
		seen := 0
		if err := w.Wait(captureQuiet); err != nil {
			return err
		}
		err := w.Frames(func(_ int, f packet.Captured) error {
			if seen++; f.Index == index {
				c.printFrame(f)
			}
			return nil
		})
		if err != nil || seen == 0 {
			return err
		}
	}
	return nil
}

func (c *call) printFrame(f packet.Captured) {
	way := "in "
	if f.Type == unix.PACKET_OUTGOING {
		way = "out"
	}
	c.printf("%s %s\n", way, f.Decode())
	for line := range strings.Lines(packet.ExplainARP(f.Data)) {
		c.printf("      %s", line)
	}
}
