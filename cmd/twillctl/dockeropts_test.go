package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mkDockerOpts returns flannel's script, of the version that tools/flannel pins.
func mkDockerOpts(t *testing.T) string {
	t.Helper()
	c := exec.Command("go", "mod", "download", "-json", "github.com/flannel-io/flannel")
	c.Dir, c.Env = "../../tools/flannel", append(os.Environ(), "GOWORK=off")
	out, err := c.Output()
	var module struct{ Dir, Error string }
	if e := json.Unmarshal(out, &module); e != nil || module.Dir == "" {
		t.Fatalf("download flannel's module: %v, %v: %s", err, e, module.Error)
	}
	return filepath.Join(module.Dir, "dist", "mk-docker-opts.sh")
}

// TestDockerOpts compares the command with flannel's script, byte for byte.
func TestDockerOpts(t *testing.T) {
	script := mkDockerOpts(t)
	const v4 = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n"
	const v6 = "FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1:0:4::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n"
	for name, c := range map[string]struct {
		lease, args, env string
		golden           string // of flannel's own tests; empty: the script alone says
	}{
		"both": {v4, "", "", "DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"\nDOCKER_OPT_IPMASQ=\"--ip-masq=true\"\nDOCKER_OPT_MTU=\"--mtu=1472\"\n" +
			"DOCKER_OPTS=\" --bip=10.1.74.1/24 --ip-masq=true --mtu=1472\"\n"},
		"individual":          {v4, "-i", "", "DOCKER_OPT_BIP=\"--bip=10.1.74.1/24\"\nDOCKER_OPT_IPMASQ=\"--ip-masq=true\"\nDOCKER_OPT_MTU=\"--mtu=1472\"\n"},
		"combined":            {v4, "-c", "", "DOCKER_OPTS=\" --bip=10.1.74.1/24 --ip-masq=true --mtu=1472\"\n"},
		"key":                 {v4, "-c -k CUSTOM_KEY", "", "CUSTOM_KEY=\" --bip=10.1.74.1/24 --ip-masq=true --mtu=1472\"\n"},
		"no masquerading":     {v4, "-m -c", "", "DOCKER_OPTS=\" --bip=10.1.74.1/24 --mtu=1472\"\n"},
		"all options":         {v4, "-icm -kK", "", ""},
		"flannel masquerades": {strings.ReplaceAll(v4, "false", "true"), "", "", ""},
		"more lines":          {v4 + "TWILL_NODE_UID=6f1\nTWILL_BOOT_ID=7a2\n", "", "", ""},
		"environment":         {v4, "", "DOCKER_OPTS=--debug", ""},
		"environment, key":    {v4, "-k K", "K=--debug -H unix://", ""},
		"environment, option": {v4, "", "DOCKER_OPT_ICC=--icc=false", ""},
		"environment, lease":  {v4, "", "DOCKER_OPT_MTU=--mtu=9000", ""},
		"IPv6":                {v6, "", "", ""},
		"dual stack":          {"FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\n" + v6, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			lease := filepath.Join(dir, "subnet.env")
			if err := os.WriteFile(lease, []byte(c.lease), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"-f", lease}, strings.Fields(c.args)...)
			if c.env != "" {
				key, value, _ := strings.Cut(c.env, "=")
				t.Setenv(key, value)
			}
			theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
			if out, err := exec.Command("sh", append([]string{script, "-d", theirs}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("flannel's script: %v: %s", err, out)
			}
			r := root()
			r.SetArgs(append([]string{"docker-opts", "-d", ours}, args...))
			if err := r.Execute(); err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(theirs)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(ours)
			if err != nil || !bytes.Equal(got, want) || c.golden != "" && string(got) != c.golden {
				t.Errorf("got\n%swant\n%sand\n%s%v", got, want, c.golden, err)
			}
		})
	}
}

// TestDockerOptsErrors: bad input is one sentence, and there is no file that Docker could start with.
func TestDockerOptsErrors(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.env")
	if err := os.WriteFile(bad, []byte("FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=maybe\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ args, want string }{
		{"-f " + dir + "/none", "read the lease of this node: open " + dir + "/none: no such file or directory: start twilld first"},
		{"-f " + bad, bad + `: FLANNEL_IPMASQ "maybe"`},
		{"-k A-B", `--key "A-B": want the name of a variable, such as DOCKER_OPTS`},
	} {
		r := root()
		r.SetArgs(append([]string{"docker-opts", "-d", dir + "/out"}, strings.Fields(c.args)...))
		if err := r.Execute(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.args, err, c.want)
		}
		if _, err := os.Stat(dir + "/out"); err == nil {
			t.Errorf("%s: there is a file", c.args)
		}
	}
}

// TestDockerOptsRoute: a route to this node's own subnet by way of another node is an error, as for flannel's script.
func TestDockerOptsRoute(t *testing.T) {
	runtime.LockOSThread() // and never unlocked: the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v (this test needs root)", err)
	}
	dir := t.TempDir()
	lease := filepath.Join(dir, "subnet.env")
	text := "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.74.65/26\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=false\n"
	if err := os.WriteFile(lease, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	script := mkDockerOpts(t)
	for _, step := range []struct {
		command string
		fails   bool
	}{
		{"ip link add eth0 type veth peer name peer0; ip link set eth0 up; ip link set peer0 up; ip addr add 192.0.2.1/24 dev eth0", false},
		{"ip route add 10.1.74.0/26 via 192.0.2.2", false},
		{"ip route add 10.1.74.64/26 dev eth0", false},
		{"ip route add 10.1.74.64/26 via 192.0.2.2 metric 7", true},
	} {
		if out, err := exec.Command("sh", "-c", step.command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", step.command, err, out)
		}
		out, err := exec.Command("sh", script, "-f", lease, "-d", filepath.Join(dir, "theirs")).CombinedOutput()
		if (err != nil) != step.fails {
			t.Errorf("after %q flannel's script: %v: %s", step.command, err, out)
		}
		err = dockerOpts{flannelEnv: lease, dockerEnv: filepath.Join(dir, "ours"), key: "K"}.run(nil)
		if (err != nil) != step.fails {
			t.Errorf("after %q: %v", step.command, err)
		}
	}
}
