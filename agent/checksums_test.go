package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twill-net/twill/agent/checksum"
	"github.com/twill-net/twill/backend/vxlan"
	"github.com/twill-net/twill/netstate"
)

// probed is a node whose probes find what a test says.
type probed struct {
	*node
	mu     sync.Mutex
	result checksum.Result
	to     []netip.Addr
}

func newProbed(t *testing.T, key string, result checksum.Result) *probed {
	p := &probed{node: newNode(t), result: result}
	networks := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	b, _, err := vxlan.New(networks, json.RawMessage(`{"TxChecksum":"`+key+`"}`))
	p.must(err)
	p.backend = b
	p.tune = func(c *Config) { c.ProbeChecksum = p.probe }
	return p
}

func (p *probed) probe(_ context.Context, to netip.Addr) (checksum.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = append(p.to, to)
	return p.result, nil
}

// probes returns how many there were, and begins to count anew.
func (p *probed) probes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.to)
	p.to = nil
	return n
}

func (p *probed) addPeers(from, to int) {
	for i := from; i <= to; i++ {
		p.addPeer(fmt.Sprint("node", i), fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("192.168.33.%d", 100+i),
			fmt.Sprintf("0e:00:00:00:00:%02x", i))
	}
}

func (p *probed) offload() bool {
	o := netstate.Offload{Dev: "flannel.1"}
	have, err := p.kernel.Observe(p.Context(), netstate.NewState(o))
	p.must(err)
	got, _ := have[o.Key()].(netstate.Offload)
	return got.On
}

// pass lets time of a bubble pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestChecksumsBroken: the offload goes off, stays off for a new device and for a new agent, and is told once.
func TestChecksumsBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, "auto", checksum.Broken)
		p.addPeers(2, 9)
		stop := p.start()
		p.eventually("the offload off", func() bool { return p.ready() && !p.offload() })
		pass(time.Second)
		if n := p.probes(); n > probesPerChange {
			t.Errorf("%d probes", n)
		}
		p.addPeers(10, 12)
		pass(2 * time.Minute)
		if n := p.probes(); n > 0 {
			t.Errorf("%d probes without the offload", n)
		}
		if n := p.logs("breaks the checksums"); n != 1 {
			t.Errorf("%d lines:\n%s", n, p.log.String())
		}
		for range 2 {
			p.must(p.kernel.Run("ip link del flannel.1"))
			p.eventually("the offload of a new device off", func() bool { return p.has(" dev flannel.1") && !p.offload() })
			p.must(p.kernel.Put(netstate.Offload{Dev: "flannel.1", On: true}))
			p.eventually("the offload off again", func() bool { return !p.offload() })
			stop()
			stop = p.start()
			p.eventually("ready", p.ready)
		}
		if n := p.probes(); n > 0 {
			t.Errorf("%d probes after a restart", n)
		}
		stop()
	})
}

// TestChecksumsIntact: a few of the peers are probed when peers change, and others do not follow.
func TestChecksumsIntact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, "auto", checksum.Intact)
		p.addPeers(2, 9)
		defer p.start()()
		pass(5 * time.Minute)
		if n := p.probes(); n != probesPerChange || !p.offload() {
			t.Errorf("%d probes, offload %t", n, p.offload())
		}
		p.setPeer("node9", "10.244.9.0/24", "192.168.33.200", "0e:00:00:00:00:09")
		pass(5 * time.Minute)
		if n := p.probes(); n != 1 {
			t.Errorf("%d probes after one peer has moved", n)
		}
	})
}

// TestChecksumsUnknown: peers that do not answer say nothing, and are asked again.
func TestChecksumsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProbed(t, "auto", checksum.Unknown)
		p.addPeers(2, 9)
		defer p.start()()
		pass(time.Minute)
		if n := p.probes(); n < 2*probesPerChange || n > 8*probesPerChange || !p.offload() {
			t.Errorf("%d probes in a minute, offload %t", n, p.offload())
		}
		p.mu.Lock()
		p.result = checksum.Broken
		p.mu.Unlock()
		pass(2 * probeAgain)
		if p.offload() || !strings.Contains(p.log.String(), "device=flannel.1 underlay=eth1 to=192.168.33.1") {
			t.Error("a peer that answers later is not heard:\n" + p.log.String())
		}
	})
}

// TestChecksumsNotAsked: without the word auto nobody probes.
func TestChecksumsNotAsked(t *testing.T) {
	for key, offload := range map[string]bool{"": true, "on": true, "off": false} {
		synctest.Test(t, func(t *testing.T) {
			p := newProbed(t, key, checksum.Broken)
			p.addPeers(2, 3)
			defer p.start()()
			pass(time.Minute)
			if n := p.probes(); n > 0 || p.offload() != offload {
				t.Errorf("%q: %d probes, offload %t", key, n, p.offload())
			}
		})
	}
}
