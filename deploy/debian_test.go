package deploy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// program returns the command, which runs in the repository's root, and skips the test where the program is missing.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("there is no %s here", name)
	}
	c := exec.Command(name, args...)
	c.Dir = ".."
	return c
}

func output(t *testing.T, c *exec.Cmd) string {
	t.Helper()
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}

// TestDebianPackage makes the package twice, installs it below a directory with dpkg itself, lets systemd judge its
// units there, and removes it again.
func TestDebianPackage(t *testing.T) {
	if _, err := os.Stat("../bin/twilld"); err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	var packages [2][]byte
	dir := t.TempDir()
	file := filepath.Join(dir, "twill.deb")
	for i := range packages {
		output(t, program(t, "bash", "deploy/debian/build", dir, "v0.1.0-3-gabc"))
		made, err := filepath.Glob(dir + "/twill_0.1.0+3.gabc_*.deb")
		if err != nil || len(made) != 1 {
			t.Fatalf("made %q, %v", made, err)
		}
		if packages[i], err = os.ReadFile(made[0]); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(made[0], file); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(packages[0], packages[1]) {
		t.Error("two packages of the same files differ")
	}

	root := filepath.Join(dir, "root")
	if err := os.MkdirAll(root+"/var/lib/dpkg/updates", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"available", "status"} {
		if err := os.WriteFile(root+"/var/lib/dpkg/"+name, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) {
		t.Helper()
		c := program(t, "dpkg", append([]string{"--root=" + root, "--log=/dev/null", "--force-script-chrootless"}, args...)...)
		c.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
		output(t, c)
	}
	dpkg("--install", file)
	verifyUnits(t, root)
	if err := os.WriteFile(root+"/etc/default/twilld", []byte("TWILLD_IFACE=eth1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(root+"/var/lib/twill", 0o700); err != nil {
		t.Fatal(err)
	}
	dpkg("--install", file)
	if got, err := os.ReadFile(root + "/etc/default/twilld"); string(got) != "TWILLD_IFACE=eth1\n" {
		t.Errorf("after an upgrade the options are %q, %v: want them as the administrator wrote them", got, err)
	}
	dpkg("--remove", "twill")
	for path, stays := range map[string]bool{"/usr/bin/twilld": false, "/opt/cni/bin/twill": false, "/etc/default/twilld": true,
		"/var/lib/twill": true} {
		if _, err := os.Stat(root + path); (err == nil) != stays {
			t.Errorf("after the removal %s stays: %v, want %v", path, err == nil, stays)
		}
	}
	dpkg("--purge", "twill")
	for _, path := range []string{"/etc/default/twilld", "/var/lib/twill"} {
		if _, err := os.Stat(root + path); err == nil {
			t.Errorf("the purge leaves %s", path)
		}
	}
}

// verifyUnits lets systemd-analyze read the units below root, and Docker's with the drop-in.
func verifyUnits(t *testing.T, root string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("there is no systemd-analyze here: the units are not verified")
		return
	}
	verify := func() ([]byte, error) {
		units := []string{"verify", "--man=no", "--recursive-errors=no", "--root=" + root, "twilld.service", "twill-docker-opts.service",
			"docker.service"}
		return exec.Command("systemd-analyze", units...).CombinedOutput()
	}
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	dropIn, err := os.ReadFile("systemd/docker.service.d-twill.conf")
	if err != nil {
		t.Fatal(err)
	}
	write("/usr/sbin/dockerd", "", 0o755)
	write("/bin/sh", "", 0o755)
	write("/lib/systemd/system/docker.service", "[Service]\nType=notify\nExecStart=/usr/sbin/dockerd -H fd://\n", 0o644)
	write("/etc/systemd/system/docker.service.d/twill.conf", string(dropIn), 0o644)
	if out, err := verify(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	write("/etc/systemd/system/docker.service.d/twill.conf", strings.ReplaceAll(string(dropIn), "Wants=", "Want="), 0o644)
	if out, _ := verify(); !strings.Contains(string(out), "Want") {
		t.Errorf("systemd-analyze verify does not notice a typo in the drop-in: %s", out)
	}
}

// TestUnitsStopNobody: no unit hands a stop or a restart of Twill's on to Docker, and twilld writes where it may: to
// directories that systemd makes, and to those of the package.
func TestUnitsStopNobody(t *testing.T) {
	units, err := filepath.Glob("systemd/*")
	if err != nil || len(units) < 3 {
		t.Fatalf("%q, %v", units, err)
	}
	stops := regexp.MustCompile(`(?m)^\s*(Requires|Requisite|BindsTo|PartOf|RequiredBy|Upholds|PropagatesStopTo|StopPropagatedFrom|Conflicts)=.*`)
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		if line := stops.FindString(string(text)); line != "" {
			t.Errorf("%s: %s: want Wants=", unit, line)
		}
		if unit == "systemd/twilld.service" && strings.Contains(string(text), "ReadWritePaths=") {
			t.Errorf("%s: a path of ReadWritePaths= that comes later stays read-only: want ConfigurationDirectory= or the like", unit)
		}
	}
}

// TestDebianVersions: dpkg takes a newer build for a newer version, and a release for newer than its candidates.
func TestDebianVersions(t *testing.T) {
	before := ""
	for _, git := range []string{"80cbeba", "v0.1.0-rc.1", "v0.1.0-rc.1-12-g80cbeba", "v0.1.0-rc.2", "v0.1.0", "v0.1.0-3-gabcdef0",
		"v0.1.0-10-g0123456", "v0.1.1-beta", "v0.1.1", "v0.10.0"} {
		version := strings.TrimSpace(output(t, program(t, "bash", "deploy/debian/version", git)))
		if before != "" {
			if err := program(t, "dpkg", "--compare-versions", before, "lt", version).Run(); err != nil {
				t.Errorf("%s is not newer than %s", version, before)
			}
		}
		before = version
	}
}
