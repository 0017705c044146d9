package file

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
	"github.com/twill-net/twill/subnet/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T, pools []subnet.Pool) storetest.Harness {
		return &harness{path: filepath.Join(t.TempDir(), "leases.json"), pools: pools}
	})
}

// harness does to the file what a human with an editor does.
type harness struct {
	path  string
	pools []subnet.Pool
}

func (h *harness) Store(*testing.T, subnet.Lease) subnet.Store { return New(h.path, h.pools) }

func (h *harness) Configure(_ *testing.T, pools []subnet.Pool) { h.pools = pools }

// edit changes the node's entry, or removes it when change returns nil.
func (h *harness) edit(t *testing.T, node string, change func(json.RawMessage) json.RawMessage) {
	t.Helper()
	err := New(h.path, h.pools).update(t.Context(), func(doc *document) (bool, error) {
		i := doc.find(node)
		if i < 0 {
			t.Fatalf("node %s has no entry", node)
		}
		if entry := change(doc.Leases[i]); entry != nil {
			doc.Leases[i] = entry
		} else {
			doc.Leases = append(doc.Leases[:i], doc.Leases[i+1:]...)
		}
		return true, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (h *harness) Delete(t *testing.T, l subnet.Lease) {
	h.edit(t, l.Node, func(json.RawMessage) json.RawMessage { return nil })
}

func (h *harness) Leave(t *testing.T, l subnet.Lease) { h.Delete(t, l) }

func (h *harness) Alter(t *testing.T, l subnet.Lease) {
	h.edit(t, l.Node, func(entry json.RawMessage) json.RawMessage {
		altered, err := decode(entry)
		if err != nil {
			t.Fatal(err)
		}
		altered.Stacks[0].Subnet = h.pools[0].Subnet(31)
		altered.Stacks[0].Data = json.RawMessage(`{"VNI":2}`)
		entry, err = encode(altered)
		if err != nil {
			t.Fatal(err)
		}
		return entry
	})
}

func (h *harness) Damage(t *testing.T, l subnet.Lease) string {
	h.edit(t, l.Node, func(json.RawMessage) json.RawMessage {
		return json.RawMessage(`{"node":"` + l.Node + `","stacks":7}`)
	})
	return l.Node
}

func (h *harness) Outage(t *testing.T, during func()) {
	good, err := os.ReadFile(h.path)
	if err != nil {
		good = []byte(`{"leases":[]}`)
	}
	put := func(data []byte) {
		if err := os.WriteFile(h.path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put([]byte(`{"leases":[`))
	during()
	put(good)
}

var pool = subnet.Pool{
	Network: netip.MustParsePrefix("10.244.0.0/16"), SubnetLen: 24,
	Min: netip.MustParseAddr("10.244.0.0"), Max: netip.MustParseAddr("10.244.3.0"),
}

func want(node, underlay string) subnet.Lease {
	return subnet.Lease{Node: node, Backend: "vxlan", Stacks: []subnet.Stack{{Underlay: netip.MustParseAddr(underlay)}}}
}

func TestAcquireKeepsForeignEntriesAndOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.json")
	before := `{"leases": [{"node": "z", "future": {"a": 1}, "stacks": [{"subnet": "10.244.1.0/24", "underlay": "192.0.2.26"}]},
		{"strange": true}, 7, {"node": "b", "stacks": [{"subnet": "10.244.2.0/24", "underlay": "192.0.2.2"}]}]}`
	if err := os.WriteFile(path, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	store := New(path, []subnet.Pool{pool})
	if _, err := store.Acquire(t.Context(), want("b", "192.0.2.22")); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Acquire(t.Context(), want("a", "192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	leases, skips, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range leases {
		got = append(got, l.Node+" "+l.Stacks[0].Underlay.String())
	}
	for _, s := range skips {
		got = append(got, s.Node+": "+s.Detail)
	}
	const expect = `z 192.0.2.26|b 192.0.2.22|a 192.0.2.1|entry 2: the key node is missing|` +
		`entry 3: json: cannot unmarshal number into Go value of type file.record`
	if strings.Join(got, "|") != expect {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "|"), expect)
	}
	if !strings.Contains(string(data), `"future"`) || !strings.Contains(string(data), `"strange"`) {
		t.Errorf("foreign text was lost:\n%s", data)
	}
}

// TestDuplicateEntries: of two entries of one node the earlier one counts, and the later one is a skip.
func TestDuplicateEntries(t *testing.T) {
	first, second := want("a", "192.0.2.1"), want("a", "192.0.2.2")
	first.Stacks[0].Subnet, second.Stacks[0].Subnet = pool.Subnet(1), pool.Subnet(2)
	text, err := Format([]subnet.Lease{first, second})
	if err != nil {
		t.Fatal(err)
	}
	leases, skips, err := Parse(text)
	if err != nil || len(leases) != 1 || !leases[0].Equal(first) {
		t.Errorf("got leases %+v, %v", leases, err)
	}
	earlier := subnet.Skip{Node: "a", Code: subnet.Unreadable, Detail: "the node has an earlier entry"}
	if len(skips) != 1 || skips[0] != earlier {
		t.Errorf("got skips %+v, want %+v", skips, earlier)
	}
}

// TestAcquireUnchanged: a lease that is in the file already is not written again.
func TestAcquireUnchanged(t *testing.T) {
	store := New(filepath.Join(t.TempDir(), "leases.json"), []subnet.Pool{pool})
	if _, err := store.Acquire(t.Context(), want("a", "192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	before, err := store.stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Acquire(t.Context(), want("a", "192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	if after, err := store.stat(); after != before || err != nil {
		t.Errorf("the file became %+v, it was %+v: %v", after, before, err)
	}
}

// TestWatchOldFile: a file that was written long ago is read, too.
func TestWatchOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.json")
	l := want("a", "192.0.2.1")
	l.Stacks[0].Subnet = pool.Subnet(1)
	text, err := Format([]subnet.Lease{l})
	if err == nil {
		err = os.WriteFile(path, text, 0o644)
	}
	if err == nil {
		err = os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	var got []subnet.Lease
	err = New(path, []subnet.Pool{pool}).Watch(ctx, func(s subnet.Snapshot) { got = s.Peers; cancel() })
	if err != nil || len(got) != 1 || !got[0].Equal(l) {
		t.Errorf("got peers %+v, %v", got, err)
	}
}

// TestParseNoLeases: a JSON file of something else is an outage, not an empty cluster.
func TestParseNoLeases(t *testing.T) {
	if _, _, err := Parse([]byte(`{}`)); err == nil || !strings.Contains(err.Error(), `the key "leases" is missing`) {
		t.Errorf("got %v", err)
	}
}

func TestAcquireErrors(t *testing.T) {
	dir := t.TempDir()
	store := New(filepath.Join(dir, "leases.json"), []subnet.Pool{pool})
	for i := range 4 {
		if _, err := store.Acquire(t.Context(), want(string(rune('a'+i)), "192.0.2.1")); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		store *Store
		want  subnet.Lease
		err   string
	}{
		{store, want("x", "192.0.2.9"), "all 4 subnets of 10.244.0.0/16 are in use"},
		{store, want("x", "2001:db8::1"), `the lease of node "x" has no address for network 10.244.0.0/16`},
		{store, want("", "192.0.2.9"), "the node has no name"},
		{New(filepath.Join(dir, "no", "leases.json"), store.pools), want("x", "192.0.2.9"), "no such file or directory"},
	} {
		if _, err := tc.store.Acquire(t.Context(), tc.want); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("got %v, want an error with %q", err, tc.err)
		}
	}
}

func TestAcquireGivesUpOnALockThatIsHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.json")
	unlock, err := lock(t.Context(), path+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New(path, []subnet.Pool{pool}).Acquire(ctx, want("a", "192.0.2.1")); err == nil {
		t.Error("acquired a lease without the lock")
	}
}

func FuzzParse(f *testing.F) {
	l := want("a", "192.0.2.1")
	l.Stacks[0].Subnet = pool.Subnet(1)
	good, err := Format([]subnet.Lease{l})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"leases":[null,{"node":"a","stacks":[{"subnet":"::ffff:1.2.3.0/120","underlay":"fe80::1%eth0"}]}]}`))
	f.Add([]byte(`{"leases":[{"node":"a","stacks":[{"subnet":"fd00::/64","underlay":"fd01::1"},{"subnet":"10.0.0.0/24","underlay":"10.9.0.1","data":null}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		leases, _, err := Parse(data)
		if err != nil {
			return
		}
		text, err := Format(leases)
		if err != nil {
			t.Fatal(err)
		}
		back, skips, err := Parse(text)
		if err != nil || len(skips) > 0 || len(back) != len(leases) {
			t.Fatalf("%q is read as %q, and that as %+v %+v %v", data, text, back, skips, err)
		}
		for i := range back {
			if !back[i].Equal(leases[i]) {
				t.Errorf("lease %+v becomes %+v", leases[i], back[i])
			}
		}
	})
}

// TestUnreadableEntries: an entry that is no lease is skipped, and says why.
func TestUnreadableEntries(t *testing.T) {
	entry := func(stacks string) string { return `{"node":"a","stacks":[` + stacks + `]}` }
	const v4, v6 = `{"subnet":"10.244.1.0/24","underlay":"192.0.2.1"}`, `{"subnet":"fd00::/64","underlay":"fd01::1"}`
	for text, want := range map[string]string{
		entry(v4): "", entry(v6): "", entry(v4 + "," + v6): "", entry(v6 + "," + v4): "",
		entry(""):                           "the key stacks is missing or empty",
		entry(v4 + "," + v4):                "subnet 10.244.1.0/24 is the second one of its address family",
		entry(`{"underlay":"192.0.2.1"}`):   "the key subnet is missing",
		entry(`{"subnet":"10.244.1.0/24"}`): "the key underlay of subnet 10.244.1.0/24 is missing",
		entry(`{"subnet":"10.244.1.7/24","underlay":"192.0.2.1"}`):          "subnet 10.244.1.7/24 has host bits set: want 10.244.1.0/24",
		entry(`{"subnet":"::ffff:10.244.1.0/120","underlay":"fd01::1"}`):    "subnet ::ffff:10.244.1.0/120 has host bits set",
		entry(`{"subnet":"10.244.1.0/24","underlay":"fd01::1"}`):            "underlay fd01::1 is not an address of subnet 10.244.1.0/24's family",
		entry(`{"subnet":"fd00::/64","underlay":"fe80::1%eth0"}`):           "underlay fe80::1%eth0 is not an address",
		entry(`{"subnet":"fd00::/64","underlay":"::ffff:192.0.2.1"}`):       "underlay ::ffff:192.0.2.1 is not an address",
		`{"node":"` + strings.Repeat("x", 300) + `","stacks":[` + v4 + `]}`: "",
	} {
		leases, skips, err := Parse([]byte(`{"leases":[` + text + `]}`))
		long := len(text) > 300
		switch {
		case err != nil || len(leases)+len(skips) != 1:
			t.Errorf("%s: %v, %v, %v", text, leases, skips, err)
		case want == "" && !long && len(leases) != 1, want != "" && (len(skips) != 1 || !strings.Contains(skips[0].Detail, want)):
			t.Errorf("%s: got leases %v, skips %v; want %q", text, leases, skips, want)
		case long && (len(skips) != 1 || skips[0].Node != "entry 1"):
			t.Errorf("a name of 300 characters: got leases %v, skips %v", leases, skips)
		case want == "" && !long && len(leases[0].Stacks) == 2 && !leases[0].Stacks[0].Subnet.Addr().Is4():
			t.Errorf("%s: IPv4 is not the first: %v", text, leases)
		}
	}
}

// TestUnreadableFile: a file that cannot be read or locked is an error, and no empty cluster.
func TestUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	store := New(dir, []subnet.Pool{pool})
	if _, ok, err := store.Last(t.Context(), want("a", "192.0.2.1")); ok || err == nil {
		t.Errorf("a directory has a lease %t, error %v", ok, err)
	}
	if _, err := store.Acquire(t.Context(), want("a", "192.0.2.1")); err == nil {
		t.Error("acquired a lease from a directory")
	}
	if _, err := New(filepath.Join(dir, "none"), nil).stat(); err != nil {
		t.Errorf("no file is the error %v, want an empty cluster", err)
	}
	if _, err := New(filepath.Join(dir+".lock", "x"), nil).stat(); err == nil {
		t.Error("what is below a file was looked at")
	}
	if _, err := Format([]subnet.Lease{{Node: "a", Stacks: []subnet.Stack{{Data: json.RawMessage("{")}}}}); err == nil {
		t.Error("data that is no JSON was written")
	}
}
