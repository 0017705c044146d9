package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// BenchmarkRestart prints how many pings, one every 10 ms between pods of two nodes, are lost while one of
// the agents ends and is started again: by SIGTERM, and by SIGKILL. It is the median of five each.
func BenchmarkRestart(b *testing.B) {
	for b.Loop() {
		fmt.Print("\n| backend, store | lost, SIGTERM | lost, SIGKILL |\n|---|---|---|\n")
		for _, backend := range []string{"vxlan", "udp", "wireguard"} {
			for _, store := range []string{lab.File, lab.Etcd, lab.Kube} {
				benchRestart(b, backend, store)
			}
		}
	}
}

func benchRestart(b *testing.B, backend, store string) {
	l := labtest.Up(b, lab.Spec{Name: "e2eagain" + backend + store, Backend: backend, Store: store, Nodes: 2, Pods: 1})
	n := l.Nodes()[0]
	kill := func(context.Context) error { return n.KillAgent() }
	var medians [2]int
	for i, end := range []func(context.Context) error{n.StopAgent, kill} {
		var lost []int
		for range 5 {
			lost = append(lost, lostWhile(b, l, end))
		}
		slices.Sort(lost)
		medians[i] = lost[len(lost)/2]
	}
	fmt.Printf("| %s, %s | %d | %d |\n", backend, store, medians[0], medians[1])
	b.ReportMetric(float64(medians[0]), backend+"-"+store+"-lost")
	if err := l.Down(); err != nil {
		b.Fatal(err)
	}
}

// lostWhile ends the first node's agent, starts it again, and counts until a second after that.
func lostWhile(b *testing.B, l *lab.Lab, end func(context.Context) error) int {
	b.Helper()
	n := l.Nodes()[0]
	s, err := l.Nodes()[1].Pods()[0].Stream(n.Pods()[0].Addrs[0], 10*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	testwait.Pause(b, 100*time.Millisecond, "the first pings")
	if err := end(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := n.StartAgent(b.Context()); err != nil {
		b.Fatal(err)
	}
	testwait.Pause(b, time.Second, "what is lost until then is measured")
	loss, err := s.Between(b.Context(), 0, s.Mark())
	if err != nil {
		b.Fatal(err)
	}
	return loss.Lost
}
