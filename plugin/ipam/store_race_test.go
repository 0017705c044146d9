package ipam

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestNetworksAtOnce holds that of two networks with the same addresses no two get one address when they ask
// at once: each has a lock of its own.
func TestNetworksAtOnce(t *testing.T) {
	networks := t.TempDir()
	var stores []Store
	for _, name := range []string{"cbr0", "net1"} {
		dir := filepath.Join(networks, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pending"), []byte("pod of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"cbr0", "net1"} {
		s := Store(filepath.Join(networks, name))
		lock, err := s.Lock(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		stores = append(stores, s)
	}
	for a, i := netip.MustParseAddr("10.244.0.2"), 0; i < 5000; a, i = a.Next(), i+1 {
		var got [2]bool
		var errs [2]error
		start := make(chan struct{})
		var g sync.WaitGroup
		for i, s := range stores {
			g.Go(func() {
				<-start
				got[i], errs[i] = s.reserve(filepath.Join(string(s), "pending"), a, s.Neighbours())
			})
		}
		close(start)
		g.Wait()
		if errs[0] != nil || errs[1] != nil {
			t.Fatal(errs)
		}
		if got[0] && got[1] {
			t.Fatalf("both networks have %s, after %d that only one got", a, i)
		}
	}
}

// TestUnreadableNeighbour: an address whose file in another network's store cannot be read is given to nobody.
func TestUnreadableNeighbour(t *testing.T) {
	networks, a := t.TempDir(), netip.MustParseAddr("10.244.0.2")
	own, other := Store(filepath.Join(networks, "cbr0")), Store(filepath.Join(networks, "net1"))
	for _, s := range []Store{own, other} {
		if err := os.Mkdir(string(s), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	pending := filepath.Join(string(own), "pending")
	if err := os.WriteFile(pending, []byte("a pod"), 0o600); err != nil {
		t.Fatal(err)
	}
	// More than is read of a reservation.
	if err := os.WriteFile(other.file(a), make([]byte, mostRead+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := own.reserve(pending, a, own.Neighbours()); got || err != nil {
		t.Errorf("reserve: %t, %v", got, err)
	}
}
