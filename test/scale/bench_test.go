package scale

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
)

const mega = 1 << 20

// samples is how often a benchmark of percentiles does its thing in each round.
const samples = 20

// BenchmarkStart: from exec to the last entry in the kernel.
func BenchmarkStart(b *testing.B) {
	r := newRig(b)
	var took, floor, cpu time.Duration
	var memory Memory
	var logged, received int64
	for b.Loop() {
		f, err := r.machine.Floor(r.ctx, *peers+1)
		r.must(err)
		before := r.machine.Received()
		a, t := r.start()
		cpu += a.CPU()
		received += r.machine.Received() - before
		r.settle(a)
		r.pause(3 * time.Second) // the agent returns memory when it rests
		memory, err = a.Memory()
		r.must(err)
		took, floor, logged = took+t, floor+f.Took, a.LogSize()
		r.must(a.Close())
		r.must(r.machine.Reset(r.ctx))
	}
	n := float64(b.N)
	b.ReportMetric(took.Seconds()/n, "s/start")
	b.ReportMetric(floor.Seconds()/n, "s/floor")
	b.ReportMetric(took.Seconds()/floor.Seconds(), "x-floor")
	b.ReportMetric(cpu.Seconds()/n, "cpu-s/start")
	b.ReportMetric(float64(received)/n/mega, "MB-received")
	b.ReportMetric(float64(memory.RSS)/mega, "MB-rss")
	b.ReportMetric(float64(memory.Private)/mega, "MB-private")
	b.ReportMetric(float64(memory.PSS)/mega, "MB-pss")
	b.ReportMetric(float64(memory.Peak)/mega, "MB-peak")
	b.ReportMetric(float64(logged), "log-bytes")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRestart: an agent that finds everything as it should be; until it is ready, and until it knows all peers.
func BenchmarkRestart(b *testing.B) {
	r := newRig(b)
	a, _ := r.start()
	r.settle(a)
	r.must(a.Close())
	var took, complete, cpu time.Duration
	writes := 0
	for b.Loop() {
		before := r.watch.Writes()
		a, err := r.machine.Start(*agentPath)
		r.must(err)
		t, err := a.WaitReady(r.ctx)
		r.must(err)
		all, err := a.WaitPeers(r.ctx, *peers)
		r.must(err)
		r.settle(a)
		took, complete, cpu = took+t, complete+all, cpu+a.CPU()
		writes += r.watch.Writes() - before
		r.must(a.Close())
	}
	n := float64(b.N)
	b.ReportMetric(took.Seconds()/n, "s/ready")
	b.ReportMetric(complete.Seconds()/n, "s/all-peers")
	b.ReportMetric(cpu.Seconds()/n, "cpu-s/start")
	b.ReportMetric(float64(writes)/n, "writes/start")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHeartbeat: a peer's kubelet updates its status.
func BenchmarkHeartbeat(b *testing.B) {
	r := newRig(b)
	a, _ := r.start()
	r.settle(a)
	const beats = 500
	n := min(beats, *peers)
	r.must(r.cluster.Heartbeat(r.ctx, 1, n+1)) // the first one grows the object
	r.settle(a)
	var cpu time.Duration
	var received int64
	for b.Loop() {
		cpu0, received0 := a.CPU(), r.machine.Received()
		r.must(r.cluster.Heartbeat(r.ctx, 1, n+1))
		r.pause(500 * time.Millisecond)
		cpu, received = cpu+a.CPU()-cpu0, received+r.machine.Received()-received0
	}
	all := float64(b.N * n)
	b.ReportMetric(float64(received)/all, "B-received/beat")
	b.ReportMetric(cpu.Seconds()*1e6/all, "cpu-us/beat")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkBurst: 1,000 nodes join at once; from the last one's creation to its route.
func BenchmarkBurst(b *testing.B) {
	const joins = 1000
	r := newRig(b)
	a, _ := r.start()
	r.settle(a)
	var took, created, cpu time.Duration
	logged := a.LogSize()
	for b.Loop() {
		began, cpu0 := time.Now(), a.CPU()
		r.must(r.cluster.Join(r.ctx, *peers+1, *peers+1+joins))
		done := time.Now()
		last, err := r.watch.Until(r.ctx, began, Routes(*peers+1, *peers+1+joins)...)
		r.must(err)
		took, created, cpu = took+max(0, last.Sub(done)), created+done.Sub(began), cpu+a.CPU()-cpu0
		r.must(r.cluster.Leave(r.ctx, *peers+1, *peers+1+joins))
		r.settle(a)
	}
	n := float64(b.N)
	b.ReportMetric(took.Seconds()/n, "s-after-last")
	b.ReportMetric(created.Seconds()/n, "s-creating")
	b.ReportMetric(cpu.Seconds()/n, "cpu-s/burst")
	b.ReportMetric(float64(a.LogSize()-logged)/n, "log-bytes/burst")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJoin: one node joins; from before its creation to the kernel, with what the API server took for
// the creation.
func BenchmarkJoin(b *testing.B) {
	r := newRig(b)
	a, _ := r.start()
	r.settle(a)
	var all, created []time.Duration
	for b.Loop() {
		c, j := r.joins(samples)
		created, all = append(created, c...), append(all, j...)
	}
	b.ReportMetric(quantile(created, 0.5).Seconds()*1e3, "p50-ms-creating")
	percentiles(b, all)
}

// joins has n nodes join, one after another, and leave again. It returns what the API server took for the creation of
// each, and the time from before that to the last entry in the kernel.
func (r *rig) joins(n int) (created, all []time.Duration) {
	r.b.Helper()
	first := max(r.next, *peers+1) // other nodes each time: one that comes back at once may have nothing changed
	r.next = first + n
	for next := first; next < r.next; next++ {
		began := time.Now()
		r.must(r.cluster.Join(r.ctx, next, next+1))
		created = append(created, time.Since(began))
		last, err := r.watch.Until(r.ctx, began, Objects(next)...)
		r.must(err)
		all = append(all, last.Sub(began))
		r.pause(50 * time.Millisecond)
	}
	r.must(r.cluster.Leave(r.ctx, first, r.next))
	return created, all
}

func percentiles(b *testing.B, samples []time.Duration) {
	b.ReportMetric(quantile(samples, 0.5).Seconds()*1e3, "p50-ms")
	b.ReportMetric(quantile(samples, 0.99).Seconds()*1e3, "p99-ms")
	b.ReportMetric(0, "ns/op")
}

// drifts are commands that alter one object, and what has to be written again. %s are the peer's subnet, gateway, MAC
// and underlay address.
var drifts = []struct {
	name, command string
	object        func(i int) string
}{
	{"RouteDeleted", "ip route del {subnet}", func(i int) string { return "route " + Subnet(i).String() }},
	{"RouteAltered", "ip route replace {subnet} via {gateway} dev flannel.1 onlink proto 116 mtu 600", func(i int) string { return "route " + Subnet(i).String() }},
	{"RouteBlackholed", "ip route replace blackhole {subnet} proto 116", func(i int) string { return "route " + Subnet(i).String() }},
	{"NeighDeleted", "ip neigh del {gateway} dev flannel.1", func(i int) string { return "neigh " + Subnet(i).Addr().String() }},
	{"NeighAltered", "ip neigh replace {gateway} lladdr 02:ff:ff:ff:ff:ff dev flannel.1 nud permanent", func(i int) string { return "neigh " + Subnet(i).Addr().String() }},
	{"FDBDeleted", "bridge fdb del {mac} dev flannel.1", fdbName},
	{"FDBAltered", "bridge fdb replace {mac} dst 172.31.255.1 dev flannel.1 self permanent", fdbName},
}

// BenchmarkDrift: an object is altered; until it is right again.
func BenchmarkDrift(b *testing.B) {
	for _, d := range drifts {
		b.Run(d.name, func(b *testing.B) {
			r := newRig(b)
			a, _ := r.start()
			r.settle(a)
			var all []time.Duration
			for b.Loop() {
				for i := 1; i <= samples; i++ {
					all = append(all, r.drift(d.command, d.object(i), i))
				}
			}
			percentiles(b, all)
		})
	}
}

// drift alters something of peer i and returns how long it was wrong.
func (r *rig) drift(command, object string, i int) time.Duration {
	command = strings.NewReplacer("{subnet}", Subnet(i).String(), "{gateway}", Subnet(i).Addr().String(), "{mac}", MAC(i)).Replace(command)
	_, err := r.machine.Exec(r.ctx, strings.Fields(command)...)
	altered := time.Now()
	r.must(err)
	took := r.repaired(altered, object)
	r.pause(40 * time.Millisecond)
	return took
}

// repaired is when the object was written last, once nothing is wrong with it any more, after it was altered. The
// agent may be faster than the command that altered it ends.
func (r *rig) repaired(altered time.Time, object string) time.Duration {
	for {
		at, err := r.watch.Until(r.ctx, altered.Add(-50*time.Millisecond), object)
		r.must(err)
		r.pause(30 * time.Millisecond)
		again, err := r.watch.Until(r.ctx, altered.Add(-50*time.Millisecond), object)
		r.must(err)
		if again.Equal(at) && r.right(object) {
			return max(0, at.Sub(altered))
		}
		if time.Since(altered) > testwait.Limit {
			r.b.Fatalf("%s is not repaired after %s", object, testwait.Limit)
		}
	}
}

// right asks iproute2 whether the object is as it should be.
func (r *rig) right(object string) bool {
	kind, rest, _ := strings.Cut(object, " ")
	switch kind {
	case "route":
		out, err := r.machine.Exec(r.ctx, "ip", "-N", "route", "show", rest)
		return err == nil && strings.Contains(out, "onlink") && !strings.Contains(out, "mtu") && !strings.Contains(out, "blackhole")
	case "neigh":
		out, err := r.machine.Exec(r.ctx, "ip", "neigh", "show", rest, "dev", "flannel.1")
		return err == nil && strings.Contains(out, "PERMANENT") && !strings.Contains(out, "02:ff")
	}
	mac := strings.ReplaceAll(rest, " ", ":")
	out, err := r.machine.Exec(r.ctx, "bridge", "fdb", "get", mac, "dev", "flannel.1", "self")
	return err == nil && !strings.Contains(out, "172.31.255.1")
}

// BenchmarkDevice: the VXLAN device is deleted, and everything with it; until all is back.
func BenchmarkDevice(b *testing.B) {
	r := newRig(b)
	a, _ := r.start()
	r.settle(a)
	var took, cpu time.Duration
	for b.Loop() {
		cpu0 := a.CPU()
		began := time.Now()
		_, err := r.machine.Exec(r.ctx, "ip", "link", "del", "flannel.1")
		r.must(err)
		last, err := r.watch.Until(r.ctx, began, Routes(1, *peers+1)...)
		r.must(err)
		took, cpu = took+last.Sub(began), cpu+a.CPU()-cpu0
		r.settle(a)
	}
	b.ReportMetric(took.Seconds()/float64(b.N), "s/repair")
	b.ReportMetric(cpu.Seconds()/float64(b.N), "cpu-s/repair")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkIdle: nothing happens but pods, of which one comes and one goes five times a second beside 110 that stay.
func BenchmarkIdle(b *testing.B) {
	for _, churn := range []int{0, 5} {
		b.Run(fmt.Sprintf("pods=%d", churn), func(b *testing.B) {
			r := newRig(b)
			a, _ := r.start()
			r.pods()
			r.settle(a)
			r.pause(2 * time.Second)
			forks, err := CountForks(a.PID)
			r.must(err)
			defer forks.Close()
			var cpu, wall time.Duration
			writes, woken := r.watch.Writes(), a.CountWakeups()
			for b.Loop() {
				began, cpu0 := time.Now(), a.CPU()
				r.churn(churn, 10*time.Second)
				cpu, wall = cpu+a.CPU()-cpu0, wall+time.Since(began)
			}
			rate, err := woken.Rate()
			r.must(err)
			b.ReportMetric(rate.Wakeups, "wake-ups/s")
			b.ReportMetric(rate.Switches, "switches/s")
			b.ReportMetric(100*cpu.Seconds()/wall.Seconds(), "%cpu")
			b.ReportMetric(float64(forks.Count()), "forks")
			b.ReportMetric(float64(r.watch.Writes()-writes), "kernel-messages")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// standing is how many pods a node has, kubelet's --max-pods.
const standing = 110

// pods plugs pods' cables into cni0, which the agent has made.
func (r *rig) pods() {
	_, err := r.watch.Until(r.ctx, time.Time{}, "link cni0")
	r.must(err)
	var lines strings.Builder
	for i := range standing {
		fmt.Fprint(&lines, plug(fmt.Sprint("vethp", i), fmt.Sprint("eth0s", i)))
	}
	_, err = r.machine.batch(r.ctx, "ip", lines.String())
	r.must(err)
}

// plug is a pod's cable, as lines of ip -batch.
func plug(host, pod string) string {
	return fmt.Sprintf("link add %s type veth peer name %s\nlink set %s master cni0\nlink set %s up\nlink set %s up\n", host, pod, host, host, pod)
}

// churn makes and removes veth pairs as pods' are, on cni0.
func (r *rig) churn(perSecond int, d time.Duration) {
	if perSecond == 0 {
		r.pause(d)
		return
	}
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for end, i := time.Now().Add(d), 0; time.Now().Before(end); i++ {
		<-tick.C
		lines := plug(fmt.Sprint("veth", i), fmt.Sprint("eth0p", i))
		if i > 0 {
			lines += fmt.Sprintf("link del veth%d\n", i-1)
		}
		_, err := r.machine.batch(r.ctx, "ip", lines)
		r.must(err)
	}
	_, _ = r.machine.Exec(r.ctx, "sh", "-c", "for l in $(ip -o link show type veth | grep -o 'veth[0-9][0-9]*' | sort -u); do ip link del $l; done")
}
