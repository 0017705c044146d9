//go:build e2e

package systemd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// machineName is of systemd-nspawn's machines that these tests boot; one that an earlier run left is ended.
const machineName = "twilltest"

// machine is a Debian system that systemd has booted, in namespaces of its own.
type machine struct {
	*testing.T
	root    string // its files
	console bytes.Buffer
	nspawn  *exec.Cmd
	init    int // the process ID of its systemd
}

// newMachine unpacks the machine's files, without booting it.
func newMachine(t *testing.T) *machine {
	t.Helper()
	_ = exec.Command("pkill", "-f", "^systemd-nspawn.*--machine="+machineName).Run() // there is one after a crash only
	_ = exec.Command("ip", "link", "del", "ve-"+machineName).Run()
	m := &machine{T: t, root: t.TempDir()}
	m.host("./rootfs", filepath.Join(m.bin(), "systemd/rootfs.tar"))
	m.host("tar", "-C", m.root, "-xf", filepath.Join(m.bin(), "systemd/rootfs.tar"))
	t.Cleanup(m.powerOff)
	return m
}

// bin returns the directory of the built programs.
func (m *machine) bin() string {
	if dir := os.Getenv("TWILL_BIN_DIR"); dir != "" {
		return dir
	}
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		m.Fatal(err)
	}
	return dir
}

// host runs a command on the machine that runs the test, and returns what it prints.
func (m *machine) host(name string, args ...string) string {
	m.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		m.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// write writes a file of the machine.
func (m *machine) write(path, text string) {
	m.Helper()
	if err := os.MkdirAll(filepath.Dir(m.root+path), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(m.root+path, []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
}

// boot starts the machine and waits until its systemd has started all units that do not wait for others. Its NIC is host0.
func (m *machine) boot() {
	m.Helper()
	m.nspawn = exec.Command("systemd-nspawn", "--boot", "--directory="+m.root, "--machine="+machineName, "--register=no",
		"--keep-unit", "--private-network", "--network-veth", "--capability=all", "--system-call-filter=bpf @keyring",
		"--bind=/dev/net/tun")
	m.nspawn.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1")
	m.nspawn.Stdout, m.nspawn.Stderr = &m.console, &m.console
	if err := m.nspawn.Start(); err != nil {
		m.Fatal(err)
	}
	testwait.Nil(m, "systemd runs", func() (err error) {
		out, _ := exec.Command("pgrep", "--parent", strconv.Itoa(m.nspawn.Process.Pid)).Output()
		if m.init, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
			return fmt.Errorf("%w: %s", err, m.console.String())
		}
		return m.try("systemctl is-active basic.target")
	})
	m.run("ip link set host0 up && ip addr replace 192.0.2.10/24 dev host0 && ip route replace default via 192.0.2.1")
}

// powerOff ends the machine as a power cut does.
func (m *machine) powerOff() {
	if m.nspawn == nil {
		return
	}
	if m.init != 0 {
		_ = syscall.Kill(m.init, syscall.SIGKILL) // all of its processes end, too; it may have ended
	} else {
		_ = m.nspawn.Process.Kill()
	}
	_ = m.nspawn.Wait()
	m.nspawn, m.init = nil, 0
}

func (m *machine) command(line string) *exec.Cmd {
	return exec.Command("nsenter", "--all", "--target="+strconv.Itoa(m.init), "sh", "-ec", line)
}

// try runs a line of shell in the machine.
func (m *machine) try(line string) error {
	if out, err := m.command(line).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	return nil
}

// run runs a line of shell in the machine and returns what it prints.
func (m *machine) run(line string) string {
	m.Helper()
	out, err := m.command(line).CombinedOutput()
	if err != nil {
		m.Fatalf("%s: %v\n%s\n%s", line, err, out, m.journal())
	}
	return strings.TrimSpace(string(out))
}

// until waits until a line of shell succeeds in the machine.
func (m *machine) until(line string) {
	m.Helper()
	testwait.Nil(m, line, func() error { return m.try(line) })
}

// journal returns the last words of the units that the tests are about.
func (m *machine) journal() string {
	out, _ := m.command("journalctl --no-pager --lines=20 --unit=twilld --unit=twill-docker-opts").CombinedOutput()
	return string(out)
}

// property returns what systemd says of a unit.
func (m *machine) property(unit, name string) string {
	m.Helper()
	return m.run("systemctl show --value --property=" + name + " " + unit)
}
