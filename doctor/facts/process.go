package facts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/twill-net/twill/doctor"
)

// programs are the processes that findings are about. managers are those that matter only by running: they have users
// of their own.
var (
	programs = []string{"flanneld", kubeProxy}
	managers = []string{"NetworkManager", "systemd-network"}
)

const kubeProxy = "kube-proxy"

// processes finds them in the calling thread's network namespace. It ignores processes whose namespace cannot be
// read, and programs that root or the caller did not start, or whose file has another name: anybody can start a
// process with any name and command line.
func processes() []doctor.Program {
	own, err := os.Readlink("/proc/thread-self/ns/net")
	dirs, err2 := filepath.Glob("/proc/[0-9]*")
	if err != nil || err2 != nil {
		return nil
	}
	var found []doctor.Program
	for _, dir := range dirs {
		name := read(dir + "/comm")
		manager := slices.Contains(managers, name)
		if !manager && (!slices.Contains(programs, name) || !believed(dir, name)) {
			continue
		}
		if ns, err := os.Readlink(dir + "/ns/net"); err != nil || ns != own {
			continue
		}
		line := read(dir + "/cmdline")
		if line == "" || manager && leavesOurs(name) { // a zombie has none
			continue
		}
		p := doctor.Program{Name: name}
		p.PID, _ = strconv.Atoi(filepath.Base(dir))
		if name == kubeProxy { // of others they may hold secrets
			p.Args = strings.Split(strings.TrimRight(line, "\x00"), "\x00")[1:]
		}
		found = append(found, p)
	}
	return found
}

// believed reports whether all users of a process (a set-user-ID program has several) are root or the
// caller, and its program's file is named as the process is.
func believed(dir, name string) bool {
	exe, err := os.Readlink(dir + "/exe")
	if err != nil || strings.TrimSuffix(filepath.Base(exe), " (deleted)") != name { // deleted: replaced while it runs
		return false
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return false
	}
	return ownedBy(string(status), "0", strconv.Itoa(os.Geteuid()))
}

// ownedBy reports whether a /proc/PID/status says that all users of the process are among these.
func ownedBy(status string, users ...string) bool {
	for line := range strings.Lines(status) {
		if ids, ok := strings.CutPrefix(line, "Uid:"); ok {
			all := strings.Fields(ids)
			isOther := func(id string) bool { return !slices.Contains(users, id) }
			return len(all) > 0 && !slices.ContainsFunc(all, isOther)
		}
	}
	return false
}

// leavesOurs reports whether a manager of devices is configured to leave Twill's alone. NetworkManager names the
// devices; networkd deletes the routes and rules of others when it starts, unless it is configured not to.
func leavesOurs(manager string) bool {
	switch manager {
	case "NetworkManager":
		return configured([]string{"/etc/NetworkManager/NetworkManager.conf", "/etc/NetworkManager/conf.d/*.conf",
			"/usr/lib/NetworkManager/conf.d/*.conf"}, func(text string) bool {
			return strings.Contains(text, "unmanaged-devices") &&
				(strings.Contains(text, "flannel") || strings.Contains(text, "cni"))
		})
	case "systemd-network":
		return configured([]string{"/etc/systemd/networkd.conf", "/etc/systemd/networkd.conf.d/*.conf",
			"/usr/lib/systemd/networkd.conf.d/*.conf"},
			regexp.MustCompile(`(?m)^\s*ManageForeignRoutes\s*=\s*(no|false|off|0)\s*$`).MatchString)
	}
	return false
}

// configured reports whether one of the files matches.
func configured(patterns []string, match func(string) bool) bool {
	for _, pattern := range patterns {
		files, _ := filepath.Glob(pattern) // the patterns are well-formed
		if slices.ContainsFunc(files, func(file string) bool { return match(read(file)) }) {
			return true
		}
	}
	return false
}
