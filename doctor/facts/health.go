package facts

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
)

// askHealth asks the agent how it is doing, at the address of its health checks.
func askHealth(a *doctor.Agent, address string) {
	status, text, err := ask(address, "/readyz")
	switch {
	case err != nil:
		a.Unresponsive, a.NotReady = true, err.Error()
		return
	case status != http.StatusOK:
		a.NotReady, _, _ = strings.Cut(text, "\n")
	}
	if status, text, err := ask(address, "/metrics"); err == nil && status == http.StatusOK {
		a.Metrics, a.Version = metrics(text), buildOf(text)
	}
	if status, text, err := ask(address, "/status"); err == nil && status == http.StatusOK {
		r := answerOf(text)
		a.Refused = r.Refused
		a.NameTakenBy, a.Contended, a.Runner, a.Policies, a.FastPath = r.NameTakenBy, r.Contended, r.Runner, r.Policies, r.FastPath
		a.Unreached = r.Reach.Unreached
		for _, c := range r.Certificates {
			a.Certificates = append(a.Certificates, doctor.Certificate{Name: c.Name, Left: time.Until(c.Ends)})
		}
	}
}

// answer is what the doctor reads of the agent's answer to /status, nil for what it has not.
type answer struct {
	Refused     string
	NameTakenBy string
	Contended   []string
	// Certificates say when they end.
	Certificates []struct {
		Name string
		Ends time.Time
	}
	Runner   *doctor.Runner
	Policies *doctor.PolicyStatus
	FastPath *doctor.FastPathStatus
	Reach    struct{ Unreached []doctor.Unreached }
}

func answerOf(text string) (r answer) {
	if json.Unmarshal([]byte(text), &r) != nil {
		return answer{}
	}
	return r
}

// metrics reads Twill's counters and gauges in Prometheus' text format, summed over their labels. It leaves out what
// is not finite: JSON has no numbers for it.
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

// buildInfo is the metric that has the agent's version.
var buildInfo = regexp.MustCompile(`(?m)^twill_build_info\{version="([^"]*)"\} 1$`)

func buildOf(text string) string {
	if m := buildInfo.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

// askTimeout bounds how long the agent may take to answer, and maxAnswer the answer in bytes.
const (
	askTimeout = 500 * time.Millisecond
	maxAnswer  = 1 << 20
)

// ask makes one HTTP request on a connection that is opened on the calling thread, and so in its network namespace.
func ask(address, path string) (status int, text string, err error) {
	conn, err := net.DialTimeout("tcp", address, askTimeout)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
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
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, strings.TrimSpace(string(body)), err
}
