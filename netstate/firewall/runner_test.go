package firewall

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/netstate"
)

// TestLocked: a program that never lets go of iptables' lock costs an attempt, and does not stop the agent.
func TestLocked(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	file, err := os.OpenFile(os.Getenv("XTABLES_LOCKFILE"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f := New()
	defer f.Close()
	f.iptables.timeout = 1
	want := wanted(netstate.IPTables)
	failed := make(chan error, 1)
	go func() { failed <- f.Apply(t.Context(), netstate.Diff(want, nil)[:1]) }()
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "xtables lock") {
			t.Errorf("apply while another holds the lock: %v", err)
		}
	case <-time.After(testwait.Limit):
		t.Fatal("apply still waits for the lock")
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	settle(t, f, want)
}

// TestOpen: the version of a binary decides on its variant, and on --random-fully and iptables-restore --wait.
func TestOpen(t *testing.T) {
	type kind struct {
		variant     variant
		randomFully bool
	}
	for version, want := range map[string]kind{
		"iptables v1.8.9 (nf_tables)": {nft, true}, "iptables v1.8.9 (legacy)": {legacy, true},
		"iptables v1.6.2": {legacy, true}, "iptables v1.6.1": {legacy, false}, "iptables v1.4.21": {legacy, false},
		"iptables v2.0.0 (nf_tables)": {nft, true}, "iptables v1.10.0": {legacy, true}, "iptables v0.9.9": {legacy, false},
	} {
		path := filepath.Join(t.TempDir(), "iptables")
		shim(t, path, "echo '"+version+"' #")
		c, err := newRunner().open(path)
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if got := (kind{c.variant, c.HasRandomFully()}); got != want || c.path != path {
			t.Errorf("%s: %+v at %s, want %+v at %s", version, got, c.path, want, path)
		}
	}
	path := filepath.Join(t.TempDir(), "iptables")
	shim(t, path, "echo nothing #")
	if _, err := newRunner().open(path); err == nil || !strings.Contains(err.Error(), "version") {
		t.Errorf("without a version: %v", err)
	}
}

// TestVariant: the binaries that exist decide on the variant and on --random-fully, if no legacy table is in use.
func TestVariant(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	for binaries, want := range map[string]struct {
		variant     variant
		randomFully bool
	}{
		"":                                 {nft, true},
		"iptables=v1.6.1 ip6tables=v1.6.1": {legacy, false},
		"iptables=v1.6.2 ip6tables=v1.6.1": {legacy, false},
		"iptables=v1.6.2 ip6tables=v1.6.2": {legacy, true},
		"iptables=v1.8.9_(nf_tables) ip6tables=v1.8.9_(nf_tables)":        {nft, true},
		"iptables=v1.8.9_(nf_tables) iptables-legacy=v1.8.9_(legacy)":     {nft, true},
		"iptables=v1.8.9_(legacy) iptables-nft=v1.8.9_(nf_tables)":        {legacy, true},
		"iptables-legacy=v1.8.9_(legacy)":                                 {legacy, true},
		"iptables-legacy=v1.8.9_(legacy) iptables-nft=v1.8.9_(nf_tables)": {nft, true},
	} {
		dir := t.TempDir()
		for _, b := range strings.Fields(binaries) {
			name, version, _ := strings.Cut(b, "=")
			shim(t, filepath.Join(dir, name), "/bin/echo '"+name+" "+strings.Replace(version, "_", " ", 1)+"' #")
		}
		t.Setenv("PATH", dir)
		f := New()
		if v := f.iptables.variant(); v != want.variant || f.RandomFully(netstate.IPTables) != want.randomFully {
			t.Errorf("%s: variant %s, want %s; random fully: want %t", binaries, v, want.variant, want.randomFully)
		}
		if !f.RandomFully(netstate.NFTables) {
			t.Errorf("%s: nftables has no random-fully", binaries)
		}
	}
}

// TestRefusal: what a binary complains of becomes the error; a chain that does not exist is none.
func TestRefusal(t *testing.T) {
	for message, want := range map[string]bool{
		"iptables: No chain/target/match by that name.":                             false,
		"iptables v1.8.9 (nf_tables): chain `X' in table `nat' does not exist":      false,
		"iptables v1.8.9 (nf_tables): table `nat' is incompatible, use 'nft' tool.": false,
		"iptables: Permission denied (you must be root).":                           true,
	} {
		path := filepath.Join(t.TempDir(), "iptables")
		script := "#!/bin/sh\n[ \"$1\" = --version ] && exec echo v1.8.9\n" +
			"echo \"" + strings.ReplaceAll(message, "`", "\\`") + "\" >&2\nexit 1\n"
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		c, err := newRunner().open(path)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := c.list("nat", "X")
		if lines != nil || (err != nil) != want || err != nil && !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %q, %v; want an error: %t", message, lines, err, want)
		}
	}
}

// TestMissingTable: a kernel without legacy iptables' mangle does without, until a rule is to be written there.
func TestMissingTable(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	useVariant(t, legacy)
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy"} {
		for _, suffix := range []string{"", "-restore"} {
			refuse := "#!/bin/sh\ncase \"$*\" in *mangle*) mangle=1;; esac\n" +
				"case $0 in *-restore) input=$(cat); case $input in '*mangle'*) mangle=1;; esac;; esac\n" +
				"if [ \"$mangle\" ]; then\n" +
				"echo \"$0: can't initialize iptables table \\`mangle': Table does not exist (do you need to insmod?)\" >&2\n" +
				"exit 3\nfi\n" +
				"path=" + strings.TrimSpace(sh(t, "command -v "+name+suffix)) + "\n" +
				"case $0 in *-restore) echo \"$input\" | $path \"$@\";; *) exec $path \"$@\";; esac\n"
			if err := os.WriteFile(filepath.Join(dir, name+suffix), []byte(refuse), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Setenv("PATH", dir+":"+pathVar())
	f := New()
	defer f.Close()
	all, needless := wanted(netstate.IPTables), netstate.State{}
	for key, o := range all {
		if role := o.(netstate.Chain).Role; role == netstate.Postrouting || role == netstate.Forward {
			needless[key] = o
		}
	}
	settle(t, f, needless)
	err := f.Apply(t.Context(), netstate.Diff(all, observe(t, f)))
	sentence := "the kernel has no table mangle for iptables-legacy: load its module"
	if err == nil || !strings.Contains(err.Error(), sentence) {
		t.Errorf("rules for mangle: %v", err)
	}
	settle(t, f, needless)
	settle(t, f, netstate.State{})
}

// TestCommandFails: whichever run of iptables fails, observing and every change return the error, and succeed later.
func TestCommandFails(t *testing.T) {
	onGrounds(t, func(t *testing.T, g ground, _ *Firewall) {
		if g.mode == netstate.NFTables {
			return
		}
		dir := t.TempDir()
		for _, v := range []variant{nft, legacy} {
			for _, suffix := range []string{"", "-restore"} {
				path := strings.TrimSpace(sh(t, "command -v "+v.String()+suffix))
				shim(t, filepath.Join(dir, v.String()+suffix), "sh "+dir+"/countdown "+path)
			}
		}
		countdown := "[ $2 = --version ] || echo $(($(cat " + dir + "/left) - 1)) > " + dir + "/left\n" +
			"[ $(cat " + dir + "/left) = 0 ] && echo broken >&2 && exit 4\nexec \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, "countdown"), []byte(countdown), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+pathVar())
		left := func(n int) { sh(t, fmt.Sprintf("echo %d > %s/left", n, dir)) }
		left(1 << 30)
		known := New() // the binaries
		key := netstate.Chain{Mode: netstate.IPTables, Family: netstate.IPv4, Role: netstate.Postrouting}.Key()
		want := netstate.NewState(wanted(g.mode)[key])
		for name, c := range map[string]struct{ before, after netstate.State }{
			"observe": {want, nil}, "put": {netstate.State{}, want}, "delete": {want, netstate.State{}},
		} {
			for n, failed := 1, true; failed; n++ {
				settle(t, fresh(known), c.before)
				for _, v := range []variant{nft, legacy} { // flannel's, in the other variant
					if c.after != nil && v.String() != g.name {
						load(t, v.String()+"-restore --noflush", flannelIPTables)
					}
				}
				f := fresh(known)
				plan := netstate.Diff(c.after, observe(t, f))
				f.listings, f.known = nil, false
				left(n)
				var err error
				if c.after == nil {
					f.legacyRead = time.Time{}
					_, err = f.Observe(t.Context())
				} else {
					err = f.Apply(t.Context(), plan)
				}
				failed = strings.TrimSpace(sh(t, "cat "+dir+"/left")) <= "0"
				left(1 << 30)
				if failed != (err != nil) {
					t.Errorf("%s, run %d: failed %t, and the error is %v", name, n, failed, err)
				}
				f.Close()
			}
		}
		settle(t, fresh(known), want)
	})
}

// TestHanging: a program that hangs is ended, with what it started.
func TestHanging(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iptables")
	script := "#!/bin/sh\n[ \"$1\" = --version ] && exec echo v1.8.9\nsleep 1000\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRunner()
	c, err := r.open(path)
	if err != nil {
		t.Fatal(err)
	}
	r.most = 100 * time.Millisecond
	failed := make(chan error, 1)
	go func() {
		_, err := c.list("nat", "X")
		failed <- err
	}()
	select {
	case err := <-failed:
		if err == nil || !strings.Contains(err.Error(), "has not ended within 100ms") {
			t.Errorf("list with a program that hangs: %v", err)
		}
	case <-time.After(testwait.Limit):
		t.Fatal("list still waits for the program")
	}
}
