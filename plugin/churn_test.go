//go:build long

package plugin

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestLongChurn adds and deletes pods, 16 at a time, and kills one call in eight at a random moment. Whatever was
// killed is answered as runtimes do, with a DEL. In the end nothing is left. TWILL_CHURN is the number of
// pods (2,000).
func TestLongChurn(t *testing.T) {
	pods := 2000
	if s := os.Getenv("TWILL_CHURN"); s != "" {
		var err error
		if pods, err = strconv.Atoi(s); err != nil {
			t.Fatalf("TWILL_CHURN is %q: want a number of pods", s)
		}
	}
	n := newNode(t, envDual)
	var next, added, killed, failed atomic.Int64
	var namespaces []string
	for range 16 {
		namespaces = append(namespaces, newNamespace(t))
	}
	began := time.Now()
	var wg sync.WaitGroup
	for _, pod := range namespaces {
		wg.Go(func() {
			for !t.Failed() {
				i := next.Add(1)
				if i > int64(pods) {
					return
				}
				id := fmt.Sprintf("churn%d", i)
				conf := n.config(nil)
				if i%200 == 0 {
					conf = n.config(runtimeConfig(hostPort))
				}
				result, ok := n.churn(&killed, &failed, "ADD", id, pod, conf)
				if ok {
					added.Add(1)
				}
				del, netns := n.config(nil), pod
				if ok && i%3 > 0 {
					del = n.withPrev(result)
				}
				if i%5 == 0 {
					netns = ""
				}
				if _, ok := n.churn(&killed, &failed, "DEL", id, netns, del); !ok || i%2 == 0 {
					n.must("DEL", id, netns, n.config(nil))
				}
			}
		})
	}
	wg.Wait()
	n.mustBeClean(namespaces...)
	if left := rules(t, n.ns); strings.Contains(left, "CNI-DN-") {
		t.Errorf("rules are left:\n%s", left)
	}
	if failed.Load() > 0 {
		t.Errorf("%d calls failed though nobody killed them", failed.Load())
	}
	t.Logf("%d pods, of which %d were added whole; %d calls were killed; %.0f pods/s", pods, added.Load(),
		killed.Load(),
		float64(pods)/time.Since(began).Seconds())
}

// churn is one call that may be killed, and whether it succeeded.
func (n *node) churn(killed, failed *atomic.Int64, cmd, id, pod string, conf []byte) ([]byte, bool) {
	c := n.command(cmd, id, pod, conf)
	var stdout bytes.Buffer
	c.Stdout = &stdout
	inside(n.t, n.ns, c.Start)
	if rand.IntN(8) == 0 {
		kill := time.AfterFunc(time.Duration(rand.IntN(20_000))*time.Microsecond, func() { _ = c.Process.Kill() })
		defer kill.Stop() // it is done already
	}
	err := c.Wait()
	if err != nil && c.ProcessState.ExitCode() < 0 {
		killed.Add(1)
		return nil, false
	}
	if err != nil {
		failed.Add(1)
		n.t.Errorf("%s %s: %v: %s", cmd, id, err, stdout.Bytes())
	}
	return stdout.Bytes(), err == nil
}
