package ipam

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/twill-net/twill/netstate/rtnl"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func mustRange(t testing.TB, subnet string) Range {
	t.Helper()
	r, err := NewRange(prefix(subnet), netip.Addr{}, netip.Addr{}, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// upstream is host-local's own allocator over the store at dir/network.
func upstream(t testing.TB, dir, network, subnet string) *allocator.IPAllocator {
	t.Helper()
	var set allocator.RangeSet
	if err := json.Unmarshal(fmt.Appendf(nil, `[{"subnet":%q}]`, subnet), &set); err != nil {
		t.Fatal(err)
	}
	if err := set.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	store, err := disk.New(network, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return allocator.NewIPAllocator(&set, store, 0)
}

// TestSameAddressesAsHostLocal runs upstream's allocator and ours through the same reservations and releases,
// each over a directory of its own: they hand out the same addresses in the same order, to the last one.
func TestSameAddressesAsHostLocal(t *testing.T) {
	for _, subnet := range []string{"10.244.1.0/28", "10.244.1.0/30", "fd00::/125"} {
		theirs, dir := upstream(t, t.TempDir(), "cbr0", subnet), filepath.Join(t.TempDir(), "cbr0")
		sets := []RangeSet{{mustRange(t, subnet)}}
		for i := range 40 {
			id := fmt.Sprint("pod", i)
			want, errWant := theirs.Get(id, "eth0", nil)
			got, errGot := Store(dir).Allocate(context.Background(), Owner{id, "eth0"}, sets, nil, nil)
			if (errWant == nil) != (errGot == nil) {
				t.Fatalf("%s, %s: host-local says %v, we say %v", subnet, id, errWant, errGot)
			}
			if errWant == nil && (rtnl.Prefix(&want.Address) != got[0].Prefix ||
				rtnl.Addr(want.Gateway) != got[0].Gateway) {
				t.Fatalf("%s, %s: host-local gives %v, we give %v", subnet, id, want, got)
			}
			if i%3 == 2 { // some pods go again, so that the round goes over gaps
				old := Owner{fmt.Sprint("pod", i-2), "eth0"}
				if err := theirs.Release(old.Container, old.Dev); err != nil {
					t.Fatal(err)
				}
				if _, err := Store(dir).Release(context.Background(), old, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestOneDirectoryWithHostLocal has both work on one directory, in turns: each respects and releases what the
// other reserved.
func TestOneDirectoryWithHostLocal(t *testing.T) {
	base := t.TempDir()
	theirs, dir := upstream(t, base, "cbr0", "10.244.1.0/24"), filepath.Join(base, "cbr0")
	sets := []RangeSet{{mustRange(t, "10.244.1.0/24")}}
	for i := range 20 {
		id := fmt.Sprint("pod", i)
		want := netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 2)})
		if i%2 == 0 {
			got, err := theirs.Get(id, "eth0", nil)
			if err != nil || rtnl.Addr(got.Address.IP) != want {
				t.Fatalf("host-local gave %v, %v; want %s", got, err, want)
			}
		} else if got, err := Store(dir).Allocate(context.Background(), Owner{id, "eth0"}, sets, nil, nil); err != nil ||
			got[0].Prefix.Addr() != want {
			t.Fatalf("we gave %v, %v; want %s", got, err, want)
		}
	}
	if _, err := theirs.Get("pod1", "eth0", nil); err == nil {
		t.Error("host-local does not recognise our reservation of pod1")
	}
	for i := range 20 {
		id := fmt.Sprint("pod", i)
		release := func() error { return theirs.Release(id, "eth0") }
		if i%2 == 0 {
			release = func() error {
				_, err := Store(dir).Release(context.Background(), Owner{id, "eth0"}, nil)
				return err
			}
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
	mustHoldOnly(t, dir, "last_reserved_ip.0", "lock")
}

func mustHoldOnly(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if e.Name() != indexDir {
			got = append(got, e.Name())
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(names) {
		t.Errorf("%s holds %s, want %s", dir, got, names)
	}
}

// TestParallelWithHostLocal has upstream's binary and our allocator reserve at the same time in one
// directory: the lock is one and the same.
func TestParallelWithHostLocal(t *testing.T) {
	base, program := t.TempDir(), filepath.Join(t.TempDir(), "host-local")
	pkg := "github.com/containernetworking/plugins/plugins/ipam/host-local"
	if out, err := exec.Command("go", "build", "-o", program, pkg).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	dir := filepath.Join(base, "cbr0")
	sets := []RangeSet{{mustRange(t, "10.244.1.0/24")}}
	const each = 30
	var mu sync.Mutex
	seen := map[netip.Addr]int{}
	saw := func(a netip.Addr) {
		mu.Lock()
		defer mu.Unlock()
		seen[a]++
	}
	var wg sync.WaitGroup
	for i := range each {
		wg.Go(func() { saw(hostLocal(t, program, "ADD", base, fmt.Sprint("theirs", i))) })
		wg.Go(func() {
			got, err := Store(dir).Allocate(context.Background(), Owner{fmt.Sprint("ours", i), "eth0"}, sets, nil, nil)
			if err != nil {
				t.Error(err)
				return
			}
			saw(got[0].Prefix.Addr())
		})
	}
	wg.Wait()
	if len(seen) != 2*each {
		t.Errorf("%d distinct addresses, want %d", len(seen), 2*each)
	}
	for i := range each {
		hostLocal(t, program, "DEL", base, fmt.Sprint("ours", i))
		if _, err := Store(dir).Release(context.Background(), Owner{fmt.Sprint("theirs", i), "eth0"}, nil); err != nil {
			t.Error(err)
		}
	}
	mustHoldOnly(t, dir, "last_reserved_ip.0", "lock")
}

// hostLocal runs upstream's binary and returns the address that it gave.
func hostLocal(t *testing.T, program, cmd, dataDir, id string) netip.Addr {
	t.Helper()
	c := exec.Command(program)
	c.Env = []string{"CNI_COMMAND=" + cmd, "CNI_CONTAINERID=" + id, "CNI_NETNS=/none", "CNI_IFNAME=eth0",
		"CNI_PATH=/none"}
	c.Stdin = bytes.NewReader(fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"cbr0","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}]]}}`, dataDir))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("host-local %s %s: %v: %s", cmd, id, err, out)
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if cmd == "ADD" && (json.Unmarshal(out, &result) != nil || len(result.IPs) != 1) {
		t.Errorf("host-local %s %s: %s", cmd, id, out)
		return netip.Addr{}
	} else if cmd == "ADD" {
		return result.IPs[0].Address.Addr()
	}
	return netip.Addr{}
}

// TestEmptyFile holds that a reservation whose writer died before it wrote is handed out again.
func TestEmptyFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10.244.1.2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Store(dir).Allocate(context.Background(), Owner{"a", "eth0"},
		[]RangeSet{{mustRange(t, "10.244.1.0/24")}}, nil, nil)
	if err != nil || got[0].Prefix != prefix("10.244.1.2/24") {
		t.Errorf("got %v, %v; want 10.244.1.2/24", got, err)
	}
	mustHoldOnly(t, dir, "10.244.1.2", "last_reserved_ip.0", "lock")
}

// TestCrashWhilePending holds that what a process leaves when it is killed between writing its file and
// linking it to an address is neither in the way of its pod's next ADD nor of other pods.
func TestCrashWhilePending(t *testing.T) {
	dir := t.TempDir()
	s := Store(dir)
	a, b := Owner{"a", "eth0"}, Owner{"b", "eth0"}
	if _, err := s.prepare(a, 0); err != nil {
		t.Fatal(err)
	}
	want := map[Owner]string{b: "10.244.1.2/24", a: "10.244.1.3/24"}
	for _, o := range []Owner{b, a} {
		got, err := Store(dir).Allocate(context.Background(), o, []RangeSet{{mustRange(t, "10.244.1.0/24")}}, nil, nil)
		if err != nil || got[0].Prefix != prefix(want[o]) {
			t.Fatalf("%s got %v, %v; want %s", o.Container, got, err, want[o])
		}
	}
	if content, err := os.ReadFile(s.file(prefix("10.244.1.2/24").Addr())); string(content) != b.String() {
		t.Errorf("10.244.1.2 is of %q, %v; want b's", content, err)
	}
}

// TestIndex holds that DEL without prevResult gives back all that an owner has, whether the index knows of it
// or not, opens no file that the index knows, and leaves nothing behind in either directory.
func TestIndex(t *testing.T) {
	base := t.TempDir()
	theirs, dir := upstream(t, base, "cbr0", "10.244.1.0/24"), filepath.Join(base, "cbr0")
	ctx, both := context.Background(), []RangeSet{{mustRange(t, "10.244.1.0/24")}, {mustRange(t, "fd00::/120")}}
	for _, id := range []string{"a", "b"} {
		if _, err := Store(dir).Allocate(ctx, Owner{id, "eth0"}, both, nil, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Get(id, "net1", nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the first refusal leaves the index as it is
		if _, err := Store(dir).Allocate(ctx, Owner{"a", "eth0"}, both, nil, nil); err == nil {
			t.Error("a second address for one interface was given out")
		}
	}
	// What the index knows is not read: content that is a's does not make b's file a's.
	if err := os.WriteFile(filepath.Join(dir, "10.244.1.4"), []byte("a\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Store(dir).Release(ctx, Owner{"a", "eth0"}, nil); err != nil {
		t.Fatal(err)
	}
	mustHoldOnly(t, dir, "10.244.1.3", "10.244.1.4", "10.244.1.5", "fd00::3", "last_reserved_ip.0",
		"last_reserved_ip.1", "lock")
	mustHoldOnly(t, filepath.Join(dir, indexDir), filepath.Base(Store(dir).indexFile(Owner{"b", "eth0"}, "0")),
		filepath.Base(Store(dir).indexFile(Owner{"b", "eth0"}, "1")))
	if err := theirs.Release("b", "net1"); err != nil {
		t.Fatal(err)
	}
	if _, err := Store(dir).Release(ctx, Owner{"a", "net1"}, nil); err != nil {
		t.Fatal(err)
	}
	mustHoldOnly(t, dir, "10.244.1.4", "fd00::3", "last_reserved_ip.0", "last_reserved_ip.1", "lock")
}

// TestNearlyFull takes the last free addresses of a range in which a long run is taken, and then an empty
// file's.
func TestNearlyFull(t *testing.T) {
	dir, sets := t.TempDir(), []RangeSet{{mustRange(t, "10.244.0.0/21")}}
	for i := 2; i < 2047; i++ {
		a := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		content := []byte("other\r\neth0")
		if i == 300 {
			content = nil
		}
		if i == 1000 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, a.String()), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, w := range []string{"10.244.3.232/21", "10.244.1.44/21"} {
		got, err := Store(dir).Allocate(context.Background(), Owner{fmt.Sprint("a", i), "eth0"}, sets, nil, nil)
		if err != nil || got[0].Prefix != prefix(w) {
			t.Errorf("got %v, %v; want %s", got, err, w)
		}
	}
	if got, err := Store(dir).Allocate(context.Background(), Owner{"b", "eth0"}, sets, nil, nil); err == nil ||
		!strings.Contains(err.Error(), "all 2045 addresses") {
		t.Errorf("got %v, %v; want that all 2045 addresses are reserved", got, err)
	}
}

// TestHostLocalCleansTheIndex holds that a DEL by host-local, after a node went back to flannel, leaves
// nothing.
func TestHostLocalCleansTheIndex(t *testing.T) {
	base := t.TempDir()
	theirs, dir := upstream(t, base, "cbr0", "10.244.1.0/24"), filepath.Join(base, "cbr0")
	if _, err := Store(dir).Allocate(context.Background(), Owner{"a", "eth0"},
		[]RangeSet{{mustRange(t, "10.244.1.0/24")}}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Release("a", "eth0"); err != nil {
		t.Fatal(err)
	}
	mustHoldOnly(t, dir, "last_reserved_ip.0", "lock")
	mustHoldOnly(t, filepath.Join(dir, indexDir))
}

// TestOldForm holds host-local's rule for files with only a container id: they count where there is none of
// the new form.
func TestOldForm(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"10.244.1.2": "a", "10.244.1.3": "b", "10.244.1.4": "b\r\neth0",
		"10.244.1.5": "b\r\nnet1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"a", "b"} {
		if _, err := Store(dir).Release(context.Background(), Owner{id, "eth0"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	mustHoldOnly(t, dir, "10.244.1.3", "10.244.1.5", "lock")
}

// FuzzRange holds that of whatever ranges a config has only addresses of the subnet are given out, and never
// the gateway.
func FuzzRange(f *testing.F) {
	f.Add("10.0.0.0/24", "", "", "", "10.0.0.254")
	f.Add("fd00::/64", "", "fd00::9", "fd00::3", "fd00::2")
	f.Add("0.0.0.0/0", "", "", "", "255.255.255.254")
	f.Add("::/0", "::", "", "", "")
	f.Fuzz(func(t *testing.T, subnet, first, last, gateway, begin string) {
		p, _ := netip.ParsePrefix(subnet)
		var addrs [4]netip.Addr
		for i, s := range []string{first, last, gateway, begin} {
			addrs[i], _ = netip.ParseAddr(s)
		}
		r, err := NewRange(p, addrs[0], addrs[1], addrs[2])
		if err != nil {
			return
		}
		n := 0
		for r, a := range (RangeSet{r}).after(addrs[3]) {
			if n++; a == r.Gateway || !r.Subnet.Contains(a) {
				t.Errorf("%s is handed out of %s", a, r.Subnet)
			}
			if n > 20 {
				break
			}
		}
	})
}

// FuzzEntries decodes directory entries: whatever the kernel gives, names are inside of the buffer.
func FuzzEntries(f *testing.F) {
	one := append(append(make([]byte, 16), 32, 0, 8), "10.244.1.2\x00\x00\x00"...)
	f.Add(one)
	f.Add(append(one, one...))
	f.Add(one[:20])
	f.Fuzz(func(t *testing.T, data []byte) {
		total := 0
		eachEntry(data, func(_ uint64, name string) {
			if strings.ContainsRune(name, 0) {
				t.Errorf("the name %q has a zero in it", name)
			}
			total += 19 + len(name)
		})
		if total > len(data) {
			t.Errorf("%d bytes of entries in a buffer of %d", total, len(data))
		}
	})
}

// BenchmarkAllocate is the allocator alone, in a /16 of which a run of so many addresses after the last one
// is taken.
func BenchmarkAllocate(b *testing.B) {
	for _, others := range []int{0, 4000, 60000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			dir, sets, o := b.TempDir(), []RangeSet{{mustRange(b, "10.244.0.0/16")}}, Owner{"a", "eth0"}
			for i := 2; i < others+2; i++ {
				path := filepath.Join(dir, fmt.Sprintf("10.244.%d.%d", i>>8, i&255))
				if err := os.WriteFile(path, []byte("other\r\neth0"), 0o600); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				_ = os.Remove(Store(dir).lastFile(0))
				if _, err := Store(dir).Allocate(b.Context(), o, sets, nil, nil); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if _, err := Store(dir).Release(b.Context(), o, []netip.Addr{sets[0][0].First}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
