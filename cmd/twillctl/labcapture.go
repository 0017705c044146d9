package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/internal/plain"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/choose"
	"github.com/twill-net/twill/target"
)

func labCapture(name *string) *cobra.Command {
	var ends []string
	var during time.Duration
	var count int
	c := &cobra.Command{
		Use:   "capture FILE.pcapng [HOST|HOST/DEVICE]…",
		Short: "Capture packets on all of a lab's devices, or some, into one file for Wireshark",
		Long: `Each device is an interface of the file, so that one packet can be followed from device to device. A packet
that the kernel dropped has a comment that says why and where in the kernel: in Wireshark and tshark
"frame.comment" finds them. Packets that no device saw before they were dropped have interfaces of their own,
HOST/dropped. A packet is written four seconds after it was seen: until then it may still be dropped. Pods that are
added meanwhile are not captured, new devices of hosts are.

HOST is a node, its pod as node1/pod1, its router as node1/nat, underlay or outside. The file - is the standard
output.`,
		Example: `  twillctl lab capture all.pcapng --for 10s
  twillctl lab capture way.pcapng node1 node1/pod1 underlay/br1 --filter node1/pod1,node2/pod1
  twillctl lab capture - node1/eth1 | wireshark -k -i -
  tshark -r all.pcapng -Y frame.comment -T fields -e frame.interface_name -e frame.comment -e ip.dst`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: completeHosts(name, 1),
		RunE: func(c *cobra.Command, args []string) error {
			if during < 0 || count < 0 {
				return errors.New("--for and --count: want more than nothing")
			}
			l, err := lab.Open("", *name)
			if err != nil {
				return err
			}
			o, err := choose.Capture(l, args[1:], ends)
			if err != nil {
				return err
			}
			o.Count = count
			return captureTo(c, args[0], func(w io.Writer, say func(string)) error {
				return target.Record(c.Context(), during, o, w, say)
			})
		},
	}
	c.Flags().DurationVar(&during, "for", 0, "end after this time; otherwise ctrl-C ends it")
	c.Flags().IntVar(&count, "count", 0, "end after this many packets")
	c.Flags().StringSliceVar(&ends, "filter", nil,
		"A or A,B, each a pod, a node or an address: only IP packets from or to A, or between A and B, inner or outer")
	return c
}

// captureTo captures into a file, and says on the standard error how it goes.
func captureTo(c *cobra.Command, name string, record func(w io.Writer, say func(string)) error) error {
	say := func(text string) { fmt.Fprintln(c.ErrOrStderr(), text) }
	if name == "-" {
		return record(plain.Raw(c.OutOrStdout()), say)
	}
	f := &captured{name: name}
	if err := errors.Join(record(f, say), f.Close()); err != nil {
		return fmt.Errorf("capture into %s: %w", name, err)
	}
	return nil
}

// captured is the file of a capture. It is made when there is something to write: a capture of what is not there makes none.
type captured struct {
	name string
	file *os.File // nil: it is not made yet
}

func (f *captured) Write(b []byte) (n int, err error) {
	if f.file == nil {
		// It has what pods say to each other. A file or a link that is there may be somebody else's.
		f.file, err = os.OpenFile(f.name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return 0, fmt.Errorf("%s exists already: remove it, or name another file", f.name)
		}
		if err != nil {
			return 0, err
		}
	}
	return f.file.Write(b)
}

// Close closes the file, if it was made.
func (f *captured) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
