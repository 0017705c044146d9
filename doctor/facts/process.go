package facts

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/doctor"
)

// programs are the processes that the doctor wants to know of, and managers those of which it wants no more than that
// they run: they have users of their own.
var (
	programs = []string{"twilld", "flanneld", "kube-proxy"}
	managers = []string{"NetworkManager", "systemd-network"}
)

// processes finds them among those that live in this thread's network namespace. A process whose namespace cannot be
// read is passed over. So is a program that root or the caller did not start, or whose file has another name: anybody
// can start a process with a name and a command line that he likes.
func processes() []doctor.Program {
	own, err := os.Readlink("/proc/thread-self/ns/net")
	dirs, err2 := filepath.Glob("/proc/[0-9]*")
	if err != nil || err2 != nil {
		return nil
	}
	var found []doctor.Program
	for _, dir := range dirs {
		comm, err := os.ReadFile(dir + "/comm")
		name := strings.TrimSpace(string(comm))
		manager := slices.Contains(managers, name)
		if known := manager || slices.Contains(programs, name) && believed(dir, name); err != nil || !known {
			continue
		}
		if ns, err := os.Readlink(dir + "/ns/net"); err != nil || ns != own {
			continue
		}
		line, err := os.ReadFile(dir + "/cmdline")
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if err == nil && len(line) > 0 && (!manager || !leavesOurs(name)) { // a zombie has none
			found = append(found, doctor.Program{PID: pid, Name: name, Args: withoutSecrets(arguments(line))})
		}
	}
	return found
}

// arguments are those of /proc/PID/cmdline, without the program's name.
func arguments(line []byte) []string {
	return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")[1:]
}

// believed reports whether all users of a process, of which a set-user-ID program has several, are root or the caller,
// and its program's file is named as the process is.
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
			return len(all) > 0 && !slices.ContainsFunc(all, func(id string) bool { return !slices.Contains(users, id) })
		}
	}
	return false
}

// leavesOurs says whether a manager of devices was told to keep its hands off ours. NetworkManager names the devices;
// networkd deletes routes and rules of others when it starts, unless it is told not to.
func leavesOurs(manager string) bool {
	switch manager {
	case "NetworkManager":
		return configured([]string{"/etc/NetworkManager/NetworkManager.conf", "/etc/NetworkManager/conf.d/*.conf", "/usr/lib/NetworkManager/conf.d/*.conf"},
			func(text string) bool {
				return strings.Contains(text, "unmanaged-devices") && (strings.Contains(text, "flannel") || strings.Contains(text, "cni"))
			})
	case "systemd-network":
		return configured([]string{"/etc/systemd/networkd.conf", "/etc/systemd/networkd.conf.d/*.conf", "/usr/lib/systemd/networkd.conf.d/*.conf"},
			regexp.MustCompile(`(?m)^\s*ManageForeignRoutes\s*=\s*(no|false|off|0)\s*$`).MatchString)
	}
	return false
}

// configured says whether one of the files says so.
func configured(patterns []string, says func(string) bool) bool {
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		for _, file := range files {
			if data, err := os.ReadFile(file); err == nil && says(string(data)) {
				return true
			}
		}
	}
	return false
}

// secret are flags whose values go into no report.
var secret = []string{"etcd-password", "etcd-username"}

func withoutSecrets(args []string) []string {
	clean := slices.Clone(args)
	for i, a := range clean {
		name, _, joined := strings.Cut(strings.TrimLeft(a, "-"), "=")
		switch {
		case !slices.Contains(secret, name):
		case joined:
			clean[i] = "--" + name + "=…"
		case i+1 < len(clean):
			clean[i+1] = "…"
		}
	}
	return clean
}

// FindAgent is the settings of the twilld that runs in this network namespace, and whether there is one.
func FindAgent() (Settings, bool) {
	for _, p := range processes() {
		if p.Name == "twilld" {
			return FromFlags(p.Args, environ(p.PID)), true
		}
	}
	return Defaults(), false
}

func environ(pid int) map[string]string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil
	}
	values := map[string]string{}
	for _, pair := range strings.Split(string(data), "\x00") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			values[name] = value
		}
	}
	return values
}

// agentOf says how the agent is doing.
func agentOf(s Settings, all []doctor.Program) doctor.Agent {
	i := slices.IndexFunc(all, func(p doctor.Program) bool { return p.Name == "twilld" })
	if i < 0 {
		return doctor.Agent{}
	}
	a := doctor.Agent{Running: true, PID: all[i].PID, Args: all[i].Args}
	if s.Health == "" {
		return a
	}
	status, text, err := ask(s.Health, "/readyz")
	switch {
	case err != nil:
		a.Deaf, a.NotReady = true, err.Error()
		return a
	case status != http.StatusOK:
		a.NotReady, _, _ = strings.Cut(text, "\n")
	}
	if status, text, err := ask(s.Health, "/metrics"); err == nil && status == http.StatusOK {
		a.Metrics, a.Version = metrics(text), buildOf(text)
	}
	if status, text, err := ask(s.Health, "/status"); err == nil && status == http.StatusOK {
		a.Runner = runnerOf(text)
	}
	return a
}

// runnerOf is how an agent's answer to /status says that the backend's own part is doing; older agents have no such answer.
func runnerOf(text string) *doctor.Runner {
	var r agent.Report
	if json.Unmarshal([]byte(text), &r) != nil {
		return nil
	}
	return (*doctor.Runner)(r.Runner)
}

// metrics are Twill's own counters and gauges of Prometheus' text format, summed over their labels. JSON has no numbers
// for what is not finite.
func metrics(text string) map[string]float64 {
	sums := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		name, _, _ = strings.Cut(name, "{")
		if !ok || !strings.HasPrefix(name, "twill_") {
			continue
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(n) && !math.IsInf(sums[name]+n, 0) {
			sums[name] += n
		}
	}
	return sums
}

// buildInfo is the line by which an agent says its version.
var buildInfo = regexp.MustCompile(`(?m)^twill_build_info\{version="([^"]*)"\} 1$`)

func buildOf(text string) string {
	if m := buildInfo.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// answerIn is how long the agent has to answer.
const answerIn = 500 * time.Millisecond

// mostRead bounds an answer, in bytes.
const mostRead = 1 << 20

// ask makes one HTTP request on a connection that is opened on this very thread, and so in its network namespace.
func ask(address, path string) (status int, text string, err error) {
	conn, err := net.DialTimeout("tcp", address, answerIn)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerIn)); err != nil {
		return 0, "", err
	}
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", path); err != nil {
		return 0, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, mostRead))
	return resp.StatusCode, strings.TrimSpace(string(body)), err
}
