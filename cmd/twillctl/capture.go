package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/target"
)

// overtime is how long the end of a capture may take.
const overtime = 10 * time.Second

func captureCommand() *cobra.Command {
	var f target.Flags
	var how target.Capturing
	var path string
	c := &cobra.Command{
		Use:   "capture SRC DST",
		Short: "Capture the packets between two pods on every device of their way, into one file for Wireshark",
		Long: `Each device that sees the packets is an interface of the file: of a cluster both nodes' ports of pods, bridges, tunnels
and network cards, in a lab also the pods' own devices and the underlay. Packets in tunnels that do not encrypt count by what
they carry. A packet that the kernel dropped has a comment that says why, where the kernel lets one ask: a container of the
agent's may not.

In a cluster SRC and DST are pods (NAMESPACE/NAME), nodes or addresses; the nodes write what they see through kubectl exec.
On a node they are addresses. The file must not exist.`,
		Example: `  kubectl twill capture shop/web-0 shop/db-1 -o - | wireshark -k -i -
  twillctl capture --lab twill node1/pod1 node2/pod1 --for 10s
  tshark -r twill-capture.pcapng -T fields -e frame.interface_name -e frame.comment -e ip.src -e ip.dst`,
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if how.During < 0 {
				return fmt.Errorf("--for %v: want more than nothing; 0 ends with ctrl-C", how.During)
			}
			how.Src, how.Dst = args[0], args[1]
			t, err := f.Target()
			if err != nil {
				return err
			}
			if path == "-" && how.During > 0 { // who reads it may be gone without a word: kubectl exec ends nothing on the node
				defer time.AfterFunc(how.During+overtime, func() { os.Exit(2) }).Stop() //nolint:forbidigo // the main goroutine waits for who is gone
			}
			return captureTo(c, path, func(w io.Writer, say func(string)) error { return t.Capture(c.Context(), how, w, say) })
		},
	}
	register(c, &f)
	c.Flags().StringVarP(&path, "output", "o", "twill-capture.pcapng", "the file to write; -: standard output")
	c.Flags().DurationVar(&how.During, "for", time.Minute, "how long; 0: until ctrl-C, not in a cluster")
	return c
}
