//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/test/cluster"
)

// load is what runs between two pods while something happens to the network below.
type load struct{ done chan error }

// startLoad begins a load that ends by itself: it pings each of the addresses of one pod 100 times a second, and keeps a TCP connection of iperf3 busy.
func startLoad(t *testing.T, from, to cluster.Pod, seconds int) load {
	t.Helper()
	l := load{make(chan error, 3)}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(seconds)*time.Second+testwait.Limit)
	t.Cleanup(cancel)
	for _, a := range to.Addrs {
		go func() { l.done <- pingAll(ctx, from.Name, a, seconds) }()
	}
	go func() {
		text, err := iperf(ctx, from.Name, to.Addrs[0], seconds)
		t.Log(text)
		l.done <- err
	}()
	return l
}

func pingAll(ctx context.Context, pod string, a netip.Addr, seconds int) error {
	out, err := spec.Kubectl(ctx, "exec", pod, "--", "/pod", "ping", a.String(), fmt.Sprint(100*seconds))
	if err != nil {
		return err
	}
	var sent, lost int
	if _, err := fmt.Sscan(out, &sent, &lost); err != nil {
		return err
	}
	if lost > 0 || sent != 100*seconds {
		return fmt.Errorf("ping %s: %d of %d lost", a, lost, sent)
	}
	return nil
}

// iperf sends through one TCP connection for so many seconds, and says how it went. A connection that is reset, or that
// ends early, is an error.
func iperf(ctx context.Context, pod string, to netip.Addr, seconds int) (string, error) {
	// Not all that the machine can do: the pings beside it would wait for the processor.
	out, err := spec.Kubectl(ctx, "exec", pod, "--container=probe", "--", "iperf3", "--json", "--bitrate=200M",
		fmt.Sprint("--time=", seconds), fmt.Sprint("--client=", to))
	var said struct {
		Error     string
		Intervals []struct{ Sum struct{ Bytes int64 } }
		End       struct {
			Sent struct{ Retransmits int } `json:"sum_sent"`
			Got  struct{ Bytes int64 }     `json:"sum_received"`
		}
	}
	if jsonErr := json.Unmarshal([]byte(out), &said); err == nil {
		err = jsonErr
	}
	if err == nil && len(said.Intervals) < seconds {
		err = errors.New("it did not go on to the end")
	}
	if err != nil {
		return "", fmt.Errorf("iperf3 to %s, after %d of %d s: %w: %s", to, len(said.Intervals), seconds, err, said.Error)
	}
	slowest := said.Intervals[0].Sum.Bytes
	for _, i := range said.Intervals {
		slowest = min(slowest, i.Sum.Bytes)
	}
	return fmt.Sprintf("iperf3 brought %d MB in %d s over one connection, in the slowest second %d MB, with %d retransmits",
		said.End.Got.Bytes/1e6, seconds, slowest/1e6, said.End.Sent.Retransmits), nil
}

// finish waits for the load; whatever was lost is an error.
func (l load) finish(t *testing.T) {
	t.Helper()
	for range cap(l.done) {
		if err := <-l.done; err != nil {
			t.Error(err)
		}
	}
}
