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
		theirs, dir := upstream(t, t.TempDir(), "cbr0", subnet), t.TempDir()
		sets := []rangeSet{{mustRange(t, subnet)}}
		for i := range 40 {
			id := fmt.Sprint("pod", i)
			want, errWant := theirs.Get(id, "eth0", nil)
			got, errGot := allocate(context.Background(), dir, sets, owner{id, "eth0"})
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
		} else if got, err := allocate(context.Background(), dir, sets, owner{id, "eth0"}); err != nil || got[0].prefix.Addr() != want {
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
		got = append(got, e.Name())
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
			got, err := allocate(context.Background(), dir, sets, owner{fmt.Sprint("ours", i), "eth0"})
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
	for _, name := range []string{"10.244.1.2", ".twill"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := allocate(context.Background(), dir, []rangeSet{{mustRange(t, "10.244.1.0/24")}}, owner{"a", "eth0"})
	if err != nil || got[0].prefix != prefix("10.244.1.2/24") {
		t.Errorf("got %v, %v; want 10.244.1.2/24", got, err)
	}
	mustHoldOnly(t, dir, "10.244.1.2", "last_reserved_ip.0", "lock")
}

// TestCrashBetweenLinkAndRemove holds that a temporary file which is linked to a reservation already does not
// carry the next pod's name into it.
func TestCrashBetweenLinkAndRemove(t *testing.T) {
	dir := t.TempDir()
	sets := []rangeSet{{mustRange(t, "10.244.1.0/24")}}
	if _, err := allocate(context.Background(), dir, sets, owner{"a", "eth0"}); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "10.244.1.2"), filepath.Join(dir, ".twill")); err != nil {
		t.Fatal(err)
	}
	if _, err := allocate(context.Background(), dir, sets, owner{"b", "eth0"}); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "10.244.1.2")); string(content) != "a\r\neth0" {
		t.Errorf("10.244.1.2 is of %q, %v; want a's", content, err)
	}
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
