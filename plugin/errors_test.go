package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/twill-net/twill/plugin/internal/cnierr"
	"github.com/twill-net/twill/plugin/ipam"
)

// TestBadCalls holds what each command answers to arguments that it cannot use.
func TestBadCalls(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	prev := rawJSON(n.must("ADD", "other", newNamespace(t), n.config(nil)))
	with := func(key string, value any) []byte {
		return n.config(map[string]any{"cniVersion": "1.1.0", "prevResult": prev, key: value})
	}
	long := "/run/" + strings.Repeat("x", 300)
	for _, tt := range []struct {
		code           uint
		words, command string
		netns          string
		conf           []byte
	}{
		{3, "is not there or not a network namespace: want a pod's", "ADD", pod + "-gone", with("mtu", 0)},
		{3, "is not there or not a network namespace: want a pod's", "ADD", n.dir + "/subnet.env/x", with("mtu", 0)},
		{8, "the node's own network namespace", "CHECK", n.ns, with("mtu", 0)},
		{999, "open /run/xxx", "ADD", long, with("mtu", 0)},
		{999, "open /run/xxx", "CHECK", long, with("mtu", 0)},
		{999, "open /run/xxx", "DEL", long, with("mtu", 0)},
		{7, "mtu is 5", "ADD", pod, with("mtu", 5)},
		{7, "mtu is 5", "CHECK", pod, with("mtu", 5)},
		{7, "mtu is 5", "STATUS", "", with("mtu", 5)},
		{7, "mtu is 5", "GC", "", with("mtu", 5)},
		{7, "prevResult: ", "ADD", pod, with("prevResult", map[string]any{"cniVersion": "1.1.0", "ips": 7})},
		{7, "prevResult: ", "CHECK", pod, with("prevResult", map[string]any{"cniVersion": "1.1.0", "ips": 7})},
		{7, "cni.dev/valid-attachments is 7: want a list", "GC", "", with("cni.dev/valid-attachments", 7)},
	} {
		n.mustFail(tt.code, tt.words, tt.command, "a", tt.netns, tt.conf)
	}
	n.lease(strings.Replace(envV4, "10.244.1.1/24", "10.244.1.1/31", 1))
	n.mustFail(7, "subnet.env: subnet 10.244.1.1/31: want a prefix with room", "STATUS", "", "", with("mtu", 0))
	if r := n.reserved(); len(r) != 1 {
		t.Errorf("reservations %q, want the other pod's", r)
	}
}

// TestBrokenStore holds what the commands answer where a file of the store is not what it should be, and that
// ADD leaves nothing then.
func TestBrokenStore(t *testing.T) {
	index := func(o string) string {
		return filepath.Base(ipam.Store("").Record(ipam.Owner{Container: o, Dev: "eth0"}))
	}
	ports := runtimeConfig(hostPort)
	for _, tt := range []struct {
		name, file string // a directory, or below one that is a file
		add, del   string // words of the errors; "": it succeeds
		code       uint   // of ADD's
		dir        bool
	}{
		{name: "networks", file: "../../networks", add: "reserve an address: mkdir ", code: 5},
		{name: "index", file: indexDir, add: "reserve an address in ", code: 5},
		{name: "lock", file: "lock", dir: true, add: "reserve an address: open ", code: 5},
		{name: "a pending file", file: indexDir + "/" + strings.Replace(index("a"), "addons", "0/x", 1), dir: true,
			add: "has an address for eth0 already", code: 4, del: "directory not empty"},
		{name: "an address", file: "10.244.1.3", dir: true},
		{name: "a record", file: indexDir + "/" + index("a") + "/x", dir: true,
			add: "note which plugins are run for the pod: ", code: 999, del: "is a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, pod := newNode(t, envV4), newNamespace(t)
			path := filepath.Join(n.storeDir(), tt.file)
			err := os.MkdirAll(filepath.Dir(path), 0o755)
			if tt.dir {
				err = errors.Join(err, os.Mkdir(path, 0o755))
			} else {
				err = errors.Join(err, os.RemoveAll(path), os.WriteFile(path, nil, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.add == "" {
				n.must("DEL", "b", "", n.withPrev(n.must("ADD", "b", pod, n.config(ports))))
			} else {
				n.mustFail(tt.code, tt.add, "ADD", "a", pod, n.config(ports))
			}
			for _, ns := range []string{n.ns, pod} {
				for _, l := range linksIn(t, ns) {
					if l.Type() == "veth" {
						t.Errorf("left in %s: %s", ns, l.Attrs().Name)
					}
				}
			}
			status := n.call("STATUS", "", "", n.config(map[string]any{"cniVersion": "1.1.0"})).failed
			if status != nil {
				t.Errorf("STATUS speaks of the node's network, which is fine: %v", status)
			}
			del := n.call("DEL", "a", "", n.config(nil)).failed
			if (del != nil) != (tt.del != "") || del != nil && !strings.Contains(del.Msg, tt.del) {
				t.Errorf("DEL: %v, want %q", del, tt.del)
			}
		})
	}
}

// TestBrokenPortmap holds that nothing stays of a pod whose portmap prints nonsense, or cannot be started.
func TestBrokenPortmap(t *testing.T) {
	for words, mode := range map[string]os.FileMode{"invalid character": 0o755, "permission denied": 0o644} {
		n, pod := newNode(t, envV4), newNamespace(t)
		n.path = t.TempDir()
		if err := os.WriteFile(filepath.Join(n.path, "portmap"), []byte("#!/bin/sh\necho nonsense\n"),
			mode); err != nil {
			t.Fatal(err)
		}
		n.mustFail(999, words, "ADD", "a", pod, n.config(runtimeConfig(hostPort)))
		n.path = ""
		n.must("DEL", "a", pod, n.config(nil))
		n.mustBeClean(pod)
	}
}

// TestRefusedInThePod has the kernel refuse an address in the pod, when the bridge is there already.
func TestRefusedInThePod(t *testing.T) {
	n, pod := newNode(t, envV4), newNamespace(t)
	n.must("DEL", "a", pod, n.withPrev(n.must("ADD", "a", pod, n.config(nil))))
	n.mustFail(999, "add address ff02::2/64", "ADD", "a", pod, n.config(map[string]any{"ipam": map[string]any{
		"dataDir": filepath.Join(n.dir, "networks"), "ranges": [][]map[string]string{{{"subnet": "ff02::/64"}}}}}))
	n.mustBeClean(pod)
}

// TestRollbackErrors holds that an error says what could not be undone, and keeps its code.
func TestRollbackErrors(t *testing.T) {
	bad := func(err error) []step {
		nothing := func(context.Context) error { return nil }
		return []step{{do: nothing, undo: func() error { return errors.New("stuck") }}, {do: nothing},
			{do: func(context.Context) error { return err }}}
	}
	err := run(t.Context(), bad(errors.New("refused")))
	if err == nil || !strings.Contains(err.Error(), "refused\nroll back: stuck") {
		t.Errorf("error %v", err)
	}
	var coded *types.Error
	err = run(t.Context(), bad(cnierr.New(types.ErrTryAgainLater, "refused")))
	if !errors.As(err, &coded) || coded.Code != types.ErrTryAgainLater || coded.Msg != "refused" ||
		coded.Details != "roll back: stuck" {
		t.Errorf("error %#v", err)
	}
	if err := guard(func(context.Context, *skel.CmdArgs) error { panic("oh") })(nil); err == nil ||
		!strings.Contains(err.Error(), "stopped at a bug in twill: oh") {
		t.Errorf("a panic gives %v", err)
	}
}
