package plugin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// TestStrangers holds that what is named after an address and is no file that can be read stops nobody, as it does not stop
// host-local: no pod gets the address, and all else goes on.
func TestStrangers(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	at := func(name string) string { return filepath.Join(n.storeDir(), name) }
	if err := errors.Join(os.MkdirAll(at("10.244.1.2"), 0o755), os.Symlink("10.244.1.3", at("10.244.1.3")),
		os.Symlink("nowhere", at("10.244.1.4")), unix.Mkfifo(at("10.244.1.5"), 0o600)); err != nil {
		t.Fatal(err)
	}
	n.must("DEL", "never", "", n.config(nil))
	result := n.must("ADD", "a", pod, n.config(nil))
	if _, err := os.Stat(at("10.244.1.6")); err != nil {
		t.Errorf("the pod has not got the first address that is free: %v\n%s", err, result)
	}
	n.must("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"}))
	n.must("CHECK", "a", pod, n.withPrev(result))
	n.must("GC", "", "", n.config(map[string]any{"cniVersion": "1.1.0", "cni.dev/valid-attachments": []any{}}))
	if _, err := os.Stat(at("10.244.1.6")); err == nil {
		t.Error("GC has freed nothing")
	}
	n.must("ADD", "b", pod, n.config(nil))
	n.must("DEL", "b", pod, n.config(nil))
	if _, err := os.Stat(at("10.244.1.7")); err == nil {
		t.Error("DEL has freed nothing")
	}
	if got := ipam.Store(n.storeDir()).Strangers(); len(got) != 4 {
		t.Errorf("strangers are %q, want four", got)
	}
}

// TestStrangeIndex holds that a file in the place of the plugin's own directory keeps no pod from going.
func TestStrangeIndex(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	result := n.must("ADD", "a", pod, n.config(nil))
	index := filepath.Join(n.storeDir(), indexDir)
	if err := errors.Join(os.RemoveAll(index), os.WriteFile(index, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	n.must("DEL", "never", "", n.config(nil))
	n.must("DEL", "a", pod, n.withPrev(result))
	n.mustFail(5, index+": not a directory", "ADD", "a", pod, n.config(nil))
	remove(t, index)
	n.mustBeClean(pod)
}

// TestAddressInUse holds that a pod's address is not given to another one while the pod lives, though somebody deleted its
// reservation: its port says which it has.
func TestAddressInUse(t *testing.T) {
	n, pod, other, third := newNode(t, envDual), newNamespace(t), newNamespace(t), newNamespace(t)
	n.must("ADD", "a", pod, n.config(nil))
	for _, name := range []string{"10.244.1.2", "fd00:10:244:1::2", "last_reserved_ip.0", "last_reserved_ip.1"} {
		remove(t, filepath.Join(n.storeDir(), name))
	}
	n.must("ADD", "b", other, n.config(nil))
	if r := n.reserved(); r["10.244.1.3"] == "" || r["fd00:10:244:1::3"] == "" {
		t.Errorf("reservations %q, want the next addresses", r)
	}
	n.mustFail(11, "address 10.244.1.2 was asked for and is in use at "+wire.HostEnd(ipam.Owner{Container: "a", Dev: "eth0"}),
		"ADD", "c", third, n.config(map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.244.1.2"}}}))
	n.must("DEL", "a", pod, n.config(nil))
	n.must("ADD", "c", third, n.config(map[string]any{"runtimeConfig": map[string]any{"ips": []string{"10.244.1.2"}}}))
}
