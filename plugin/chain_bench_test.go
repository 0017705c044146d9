package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/plugin/ipam"
)

// wirer is a way to give pods their network: this plugin, or a chain of upstream's.
type wirer struct {
	*node
	name    string
	plugins []map[string]any // network configs, in the order of ADD
}

const envBench = "FLANNEL_NETWORK=10.240.0.0/12\nFLANNEL_SUBNET=10.244.0.1/16\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

func ours(b *testing.B, env string) wirer {
	return wirer{newNode(b, env), "twill", []map[string]any{{"type": "twill"}}}
}

// stock is bridge and host-local as flannel's plugin runs them, and portmap, which runs for every pod.
// Flannel's own plugin, which would come before them, is not in upstream's module.
func stock(b *testing.B, subnets ...string) wirer {
	n := newNode(b, "")
	for _, p := range []string{"main/bridge", "ipam/host-local", "meta/portmap"} {
		buildUpstream(b, p)
	}
	var ranges [][]map[string]string
	for _, s := range subnets {
		ranges = append(ranges, []map[string]string{{"subnet": s}})
	}
	routes := []map[string]string{{"dst": "10.240.0.0/12"}}
	ipam := map[string]any{"type": "host-local", "ranges": ranges, "routes": routes,
		"dataDir": filepath.Join(n.dir, "networks")}
	return wirer{n, "stock chain", []map[string]any{
		{"type": "bridge", "bridge": "cni0", "mtu": 1450, "hairpinMode": true, "isGateway": true,
			"isDefaultGateway": true, "ipMasq": false, "ipam": ipam},
		{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}}}}
}

// exec runs one plugin as libcni does.
func (w wirer) exec(cmd, id, pod string, conf map[string]any) ([]byte, error) {
	if conf["type"] != "twill" {
		conf["name"], conf["cniVersion"] = "cbr0", "1.0.0"
	}
	var stdin []byte
	var err error
	if conf["type"] == "twill" {
		stdin = w.config(conf)
	} else if stdin, err = json.Marshal(conf); err != nil {
		return nil, err
	}
	c := exec.Command(filepath.Join(binaries, conf["type"].(string)))
	c.Env = w.command(cmd, id, pod, nil).Env
	c.Stdin = bytes.NewReader(stdin)
	var stdout bytes.Buffer
	c.Stdout = &stdout
	inside(w.t, w.ns, c.Start)
	if err := c.Wait(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", conf["type"], cmd, err, stdout.Bytes())
	}
	return stdout.Bytes(), nil
}

func with(conf map[string]any, prev []byte) map[string]any {
	all := map[string]any{}
	for k, v := range conf {
		all[k] = v
	}
	if prev != nil {
		all["prevResult"] = rawJSON(prev)
	}
	return all
}

func (w wirer) add(id, pod string) (result []byte, err error) {
	for _, p := range w.plugins {
		if result, err = w.exec("ADD", id, pod, with(p, result)); err != nil {
			return nil, err
		}
	}
	return result, nil
}

func (w wirer) del(id, pod string, result []byte) error {
	var errs []error
	for _, p := range slices.Backward(w.plugins) {
		_, err := w.exec("DEL", id, pod, with(p, result))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// samples are durations of one kind.
type samples []time.Duration

func (s *samples) time(b *testing.B, f func() error) {
	began := time.Now()
	err := f()
	*s = append(*s, time.Since(began))
	if err != nil {
		b.Fatal(err)
	}
}

func (s samples) p50() float64 {
	s = slices.Clone(s)
	slices.Sort(s)
	return float64(s[len(s)/2].Microseconds()) / 1000
}

// BenchmarkAgainstChain prints what a runtime waits for with this plugin and with upstream's chain, measured
// in turns on one machine, process starts included.
func BenchmarkAgainstChain(b *testing.B) {
	for b.Loop() {
		var rows []row
		rows = append(rows, serial(b, 0)...)
		rows = append(rows, serial(b, 4000)...)
		rows = append(rows, parallel(b), firstIPv6(b), sizes(b))
		fmt.Printf("\n| measure | stock chain | twill | ratio |\n|---|---|---|---|\n")
		for _, r := range rows {
			fmt.Printf("| %s | %.2f | %.2f | %.2f |\n", r.name, r.stock, r.ours, r.stock/r.ours)
			b.ReportMetric(r.ours, strings.ReplaceAll(r.name, " ", "-"))
		}
	}
}

type row struct {
	name        string
	stock, ours float64
}

// serial adds and deletes one pod after another, with so many reservations of others on the node.
func serial(b *testing.B, others int) []row {
	pair := []wirer{stock(b, "10.244.0.0/16"), ours(b, envBench)}
	times := make([][3]samples, 2)
	pod := newNamespace(b)
	for _, w := range pair {
		result, err := w.add("first", pod)
		if err != nil {
			b.Fatal(err)
		}
		reserveOthers(b, w, others)
		if err := w.del("first", pod, result); err != nil {
			b.Fatal(err)
		}
	}
	for range 60 {
		for i, w := range pair {
			var result []byte
			times[i][0].time(b, func() (err error) { result, err = w.add("pod", pod); return err })
			times[i][1].time(b, func() error { return w.del("pod", pod, result) })
			times[i][2].time(b, func() error { return w.del("pod", "", nil) })
		}
	}
	var rows []row
	for k, verb := range []string{"ADD", "DEL", "second DEL"} {
		rows = append(rows, row{fmt.Sprintf("%s p50 ms with %d reservations", verb, others), times[0][k].p50(),
			times[1][k].p50()})
	}
	return rows
}

// reserveOthers makes reservations as each way does: ours with the index beside them.
func reserveOthers(b *testing.B, w wirer, count int) {
	b.Helper()
	s := ipam.Store(w.storeDir())
	all, err := ipam.NewRange(netip.MustParsePrefix("10.244.0.0/16"), netip.Addr{}, netip.Addr{}, netip.Addr{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range count {
		o, a := ipam.Owner{Container: fmt.Sprintf("%064x", i),
			Dev: "eth0"}, netip.AddrFrom4([4]byte{10, 244, byte(100 + i/250), byte(i % 250)})
		if w.name == "twill" {
			_, err = s.Allocate(b.Context(), o, []ipam.RangeSet{{all}}, []netip.Addr{a}, nil)
		} else {
			err = os.WriteFile(filepath.Join(w.storeDir(), a.String()), []byte(o.String()), 0o600)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// parallel is pods a second, 16 at a time.
func parallel(b *testing.B) row {
	rate := func(w wirer) float64 {
		const pods = 160
		names, results := make([]string, pods), make([][]byte, pods)
		for i := range names {
			names[i] = newNamespace(b)
		}
		if _, err := w.add("first", newNamespace(b)); err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		sixteen(pods, func(i int) {
			var err error
			if results[i], err = w.add(fmt.Sprint("pod", i), names[i]); err != nil {
				b.Error(err)
			}
		})
		took := time.Since(began)
		sixteen(pods, func(i int) { _ = w.del(fmt.Sprint("pod", i), names[i], results[i]) })
		return pods / took.Seconds()
	}
	return row{"ADD per s, 16 at a time", rate(stock(b, "10.244.0.0/16")), rate(ours(b, envBench))}
}

func sixteen(count int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range count {
		slots <- struct{}{}
		wg.Go(func() { defer func() { <-slots }(); f(i) })
	}
	wg.Wait()
}

// firstIPv6 is the time from the first ADD on a node to the gateway's first answer over IPv6.
func firstIPv6(b *testing.B) row {
	wait := func(w wirer) float64 {
		pod := newNamespace(b)
		began := time.Now()
		if _, err := w.add("pod", pod); err != nil {
			b.Fatal(err)
		}
		for !answers(b, pod, "fd00:10:244:1::1") {
			if time.Since(began) > testwait.Limit {
				b.Fatalf("%s: no answer over IPv6 in %s", w.name, testwait.Limit)
			}
		}
		return float64(time.Since(began).Microseconds()) / 1000
	}
	return row{"ms to the first IPv6 reply, dual stack", wait(stock(b, "10.244.0.0/16", "fd00:10:244:1::/64")),
		wait(ours(b, envDual))}
}

// answers sends one echo request and waits 5 ms for the reply.
func answers(b *testing.B, pod, to string) (ok bool) {
	inside(b, pod, func() error {
		conn, err := icmp.ListenPacket("ip6:ipv6-icmp", "")
		if err != nil {
			return err
		}
		defer conn.Close()
		packet, err := (&icmp.Message{Type: ipv6.ICMPTypeEchoRequest, Body: &icmp.Echo{ID: 7, Seq: 1}}).Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := conn.WriteTo(packet, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
			return nil // the address is still tentative
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		for buf := make([]byte, 1500); ; {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				return nil
			}
			if m, err := icmp.ParseMessage(58, buf[:n]); err == nil && m.Type == ipv6.ICMPTypeEchoReply {
				ok = true
				return nil
			}
		}
	})
	return ok
}

// sizes is what a pod's network needs on the disk; portmap is left out, which both need for host ports.
func sizes(b *testing.B) row {
	size := func(names ...string) (sum float64) {
		for _, name := range names {
			info, err := os.Stat(filepath.Join(binaries, name))
			if err != nil {
				b.Fatal(err)
			}
			sum += float64(info.Size()) / 1e6
		}
		return sum
	}
	return row{"MB of programs, stripped", size("bridge", "host-local"), size("twill")}
}
