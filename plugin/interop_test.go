package plugin

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
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func mustRange(t testing.TB, subnet string) addrRange {
	t.Helper()
	r, err := newRange(prefix(subnet), netip.Addr{}, netip.Addr{}, netip.Addr{})
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
		sets := []rangeSet{{mustRange(t, subnet)}}
		for i := range 40 {
			id := fmt.Sprint("pod", i)
			want, errWant := theirs.Get(id, "eth0", nil)
			got, errGot := request{sets: sets}.allocate(context.Background(), dir, owner{id, "eth0"})
			if (errWant == nil) != (errGot == nil) {
				t.Fatalf("%s, %s: host-local says %v, we say %v", subnet, id, errWant, errGot)
			}
			if errWant == nil && (prefixOf(&want.Address) != got[0].prefix || addrOf(want.Gateway) != got[0].gateway) {
				t.Fatalf("%s, %s: host-local gives %v, we give %v", subnet, id, want, got)
			}
			if i%3 == 2 { // some pods go again, so that the round goes over gaps
				old := owner{fmt.Sprint("pod", i-2), "eth0"}
				if err := theirs.Release(old.container, old.dev); err != nil {
					t.Fatal(err)
				}
				if err := releaseAll(context.Background(), dir, old, nil); err != nil {
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
	sets := []rangeSet{{mustRange(t, "10.244.1.0/24")}}
	for i := range 20 {
		id := fmt.Sprint("pod", i)
		want := netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 2)})
		if i%2 == 0 {
			got, err := theirs.Get(id, "eth0", nil)
			if err != nil || addrOf(got.Address.IP) != want {
				t.Fatalf("host-local gave %v, %v; want %s", got, err, want)
			}
		} else if got, err := (request{sets: sets}).allocate(context.Background(), dir, owner{id, "eth0"}); err != nil || got[0].prefix.Addr() != want {
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
			release = func() error { return releaseAll(context.Background(), dir, owner{id, "eth0"}, nil) }
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

// TestParallelWithHostLocal has upstream's binary and our allocator reserve at the same time in one directory:
// the lock is one and the same.
func TestParallelWithHostLocal(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "cbr0")
	sets := []rangeSet{{mustRange(t, "10.244.1.0/24")}}
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
		wg.Go(func() { saw(addresses(t, hostLocal(t, "ADD", base, fmt.Sprint("theirs", i)))[0]) })
		wg.Go(func() {
			got, err := request{sets: sets}.allocate(context.Background(), dir, owner{fmt.Sprint("ours", i), "eth0"})
			if err != nil {
				t.Error(err)
				return
			}
			saw(got[0].prefix.Addr())
		})
	}
	wg.Wait()
	if len(seen) != 2*each {
		t.Errorf("%d distinct addresses, want %d", len(seen), 2*each)
	}
	for i := range each {
		hostLocal(t, "DEL", base, fmt.Sprint("ours", i))
		if err := releaseAll(context.Background(), dir, owner{fmt.Sprint("theirs", i), "eth0"}, nil); err != nil {
			t.Error(err)
		}
	}
	mustHoldOnly(t, dir, "last_reserved_ip.0", "lock")
}

// hostLocal runs upstream's binary.
func hostLocal(t *testing.T, cmd, dataDir, id string) []byte {
	t.Helper()
	c := exec.Command(filepath.Join(binaries, "host-local"))
	c.Env = []string{"CNI_COMMAND=" + cmd, "CNI_CONTAINERID=" + id, "CNI_NETNS=/none", "CNI_IFNAME=eth0", "CNI_PATH=" + binaries}
	c.Stdin = bytes.NewReader(fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"cbr0","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.244.1.0/24"}]]}}`, dataDir))
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("host-local %s %s: %v: %s", cmd, id, err, out)
	}
	return out
}

// TestEmptyFile holds that a reservation whose writer died before it wrote is handed out again.
func TestEmptyFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "10.244.1.2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := request{sets: []rangeSet{{mustRange(t, "10.244.1.0/24")}}}.allocate(context.Background(), dir, owner{"a", "eth0"})
	if err != nil || got[0].prefix != prefix("10.244.1.2/24") {
		t.Errorf("got %v, %v; want 10.244.1.2/24", got, err)
	}
	mustHoldOnly(t, dir, "10.244.1.2", "last_reserved_ip.0", "lock")
}

// TestCrashOfADraft holds that what a process leaves when it is killed between writing its draft and linking it to
// an address is neither in the way of its pod's next ADD nor of other pods.
func TestCrashOfADraft(t *testing.T) {
	dir := t.TempDir()
	s := &store{dir: dir}
	a, b := owner{"a", "eth0"}, owner{"b", "eth0"}
	if _, err := s.draft(a, 0); err != nil {
		t.Fatal(err)
	}
	want := map[owner]string{b: "10.244.1.2/24", a: "10.244.1.3/24"}
	for _, o := range []owner{b, a} {
		got, err := request{sets: []rangeSet{{mustRange(t, "10.244.1.0/24")}}}.allocate(context.Background(), dir, o)
		if err != nil || got[0].prefix != prefix(want[o]) {
			t.Fatalf("%s got %v, %v; want %s", o.container, got, err, want[o])
		}
	}
	if content, err := os.ReadFile(s.path(prefix("10.244.1.2/24").Addr())); string(content) != b.String() {
		t.Errorf("10.244.1.2 is of %q, %v; want b's", content, err)
	}
}

// TestIndex holds that DEL without prevResult gives back all that an owner has, whether the index knows of it or
// not, opens no file that the index knows, and leaves nothing behind in either directory.
func TestIndex(t *testing.T) {
	base := t.TempDir()
	theirs, dir := upstream(t, base, "cbr0", "10.244.1.0/24"), filepath.Join(base, "cbr0")
	ctx, both := context.Background(), request{sets: []rangeSet{{mustRange(t, "10.244.1.0/24")}, {mustRange(t, "fd00::/120")}}}
	for _, id := range []string{"a", "b"} {
		if _, err := both.allocate(ctx, dir, owner{id, "eth0"}); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.Get(id, "net1", nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := both.allocate(ctx, dir, owner{"a", "eth0"}); err == nil {
		t.Error("a second address for one interface was given out")
	}
	// What the index knows is not read: content that is a's does not make b's file a's.
	if err := os.WriteFile(filepath.Join(dir, "10.244.1.4"), []byte("a\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := releaseAll(ctx, dir, owner{"a", "eth0"}, nil); err != nil {
		t.Fatal(err)
	}
	mustHoldOnly(t, dir, "10.244.1.3", "10.244.1.4", "10.244.1.5", "fd00::3", "last_reserved_ip.0", "last_reserved_ip.1", "lock")
	mustHoldOnly(t, filepath.Join(dir, indexDir), indexName(owner{"b", "eth0"})+"0", indexName(owner{"b", "eth0"})+"1")
	if err := theirs.Release("b", "net1"); err != nil {
		t.Fatal(err)
	}
	if err := releaseAll(ctx, dir, owner{"a", "net1"}, nil); err != nil {
		t.Fatal(err)
	}
	mustHoldOnly(t, dir, "10.244.1.4", "fd00::3", "last_reserved_ip.0", "last_reserved_ip.1", "lock")
}

// TestNearlyFull takes the last free addresses of a range in which a long run is taken, and then an empty file's.
func TestNearlyFull(t *testing.T) {
	dir, sets := t.TempDir(), []rangeSet{{mustRange(t, "10.244.0.0/21")}}
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
		got, err := request{sets: sets}.allocate(context.Background(), dir, owner{fmt.Sprint("a", i), "eth0"})
		if err != nil || got[0].prefix != prefix(w) {
			t.Errorf("got %v, %v; want %s", got, err, w)
		}
	}
	if got, err := (request{sets: sets}).allocate(context.Background(), dir, owner{"b", "eth0"}); err == nil || !strings.Contains(err.Error(), "all 2045 addresses") {
		t.Errorf("got %v, %v; want that all 2045 addresses are reserved", got, err)
	}
}

// TestHostLocalCleansTheIndex holds that a DEL by host-local, after a node went back to flannel, leaves nothing.
func TestHostLocalCleansTheIndex(t *testing.T) {
	base := t.TempDir()
	theirs, dir := upstream(t, base, "cbr0", "10.244.1.0/24"), filepath.Join(base, "cbr0")
	if _, err := (request{sets: []rangeSet{{mustRange(t, "10.244.1.0/24")}}}).allocate(context.Background(), dir, owner{"a", "eth0"}); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Release("a", "eth0"); err != nil {
		t.Fatal(err)
	}
	mustHoldOnly(t, dir, "last_reserved_ip.0", "lock")
	mustHoldOnly(t, filepath.Join(dir, indexDir))
}

// TestOldForm holds host-local's rule for files with only a container id: they count where there is none of the
// new form.
func TestOldForm(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"10.244.1.2": "a", "10.244.1.3": "b", "10.244.1.4": "b\r\neth0", "10.244.1.5": "b\r\nnet1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"a", "b"} {
		if err := releaseAll(context.Background(), dir, owner{id, "eth0"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	mustHoldOnly(t, dir, "10.244.1.3", "10.244.1.5", "lock")
}
