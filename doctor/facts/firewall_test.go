package facts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testns"
)

// TestUnreadRules: iptables is missed where it is not installed, and asked where it is, if, and only if, the kernel has chains
// that it would show. nft is never asked.
func TestUnreadRules(t *testing.T) {
	testns.Enter(t)
	all, none, some := os.Getenv("PATH"), t.TempDir(), t.TempDir()
	log := filepath.Join(none, "log")
	for _, name := range []string{"nft", "iptables-save"} {
		path, err := exec.LookPath(name)
		if err == nil {
			script := fmt.Sprintf("#!/bin/sh\necho %s $* >>%s\nexec %s \"$@\"\n", name, log, path)
			err = os.WriteFile(filepath.Join(some, name), []byte(script), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(command string) {
		t.Setenv("PATH", all)
		if out, err := exec.Command("sh", "-ec", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	for _, test := range []struct{ name, do, undo, unread, asked, chains string }{
		{"no rules", "", "", "", "", "[]"},
		{"another's table", `nft add table inet site; nft add chain inet site c '{ type filter hook prerouting priority -300; policy drop; }'`,
			`nft delete table inet site`, "", "", "[inet site c]"},
		{"Twill's own", `nft add table ip flannel-ipv4; nft add chain ip flannel-ipv4 postrtg`, `nft delete table ip flannel-ipv4`, "", "", "[]"},
		{"iptables", `iptables -t raw -A PREROUTING -j DROP`, `nft flush ruleset`, "iptables-save: ", "iptables-save\n", "[ip raw PREROUTING]"},
		{"the older iptables", `iptables-legacy -A FORWARD -j DROP`, `iptables-legacy -F`, "iptables-save: ", "iptables-save\n", "[]"},
	} {
		run(test.do)
		t.Setenv("PATH", none)
		there, unread := chains(false)
		if text := strings.Join(unread, "; "); (text == "") != (test.unread == "") || !strings.Contains(text, test.unread) {
			t.Errorf("%s: want %q to be unread, got %q", test.name, test.unread, text)
		}
		if got := fmt.Sprint(there); got != test.chains {
			t.Errorf("%s: without programs %s are read, want %s", test.name, got, test.chains)
		}
		t.Setenv("PATH", some)
		if _, unread := chains(false); len(unread) > 0 {
			t.Errorf("%s: the programs are there, got %q unread", test.name, unread)
		}
		asked, _ := os.ReadFile(log)
		if string(asked) != test.asked {
			t.Errorf("%s: want %q to be asked, got %q", test.name, test.asked, asked)
		}
		_ = os.Remove(log)
		run(test.undo)
	}
}
