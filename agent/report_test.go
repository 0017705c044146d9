package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/twill-net/twill/agent/reach"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

func TestClip(t *testing.T) {
	if got := clip("short"); got != "short" {
		t.Errorf("short: %q", got)
	}
	if got := clip(strings.Repeat("x", 500)); len(got) != 500 {
		t.Errorf("500 bytes became %d", len(got))
	}
	got := clip(strings.Repeat("é", 1<<20))
	if len(got) > maxReason+30 || !utf8.ValidString(got) || !strings.HasSuffix(got, " … (2097152 bytes)") {
		t.Errorf("a megabyte: %d bytes, %q", len(got), got[len(got)-30:])
	}
}

// reporter is a store that takes events.
type reporter struct {
	subnet.Store
	events []string
}

func (r *reporter) Event(_, reason, message string)                    { r.events = append(r.events, reason+": "+message) }
func (r *reporter) Network(_ bool, _, _ string)                        {}
func (r *reporter) Reached(_ bool, _, _ string)                        {}
func (r *reporter) Watch(context.Context, func(subnet.Snapshot)) error { return nil }

// TestReportSkips: a node that says something else each time is told of, in few words that are not its own.
func TestReportSkips(t *testing.T) {
	var log bytes.Buffer
	store := &reporter{}
	a := New(Config{Planner: Planner{Node: "node1"}, Store: store, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
	codes := []subnet.Code{subnet.Unreadable, subnet.Unroutable, subnet.OutsideNetwork, subnet.BackendData, subnet.DuplicateMAC, subnet.DuplicateSubnet, subnet.OffLink}
	good := subnet.Skip{Node: "good", Code: subnet.OtherBackend, Detail: "it uses the backend \"host-gw\""}
	for i := range 5000 {
		detail := fmt.Sprintf("its backend-data %q", strings.Repeat("evil ", 1000)+fmt.Sprint(i))
		a.reportSkips([]subnet.Skip{good, {Node: "mad", Code: codes[i%len(codes)], Detail: detail}})
	}
	if got := strings.Count(log.String(), "\n"); got > skipLines+2 || got < skipLines/2 {
		t.Errorf("%d lines were logged, want at most %d", got, skipLines)
	}
	if log.Len() > 2*maxReason*skipLines {
		t.Errorf("%d bytes were logged", log.Len())
	}
	if len(store.events) != skipEvents || store.events[0] != "PeerSkipped: node good is left out: it uses another backend" {
		t.Errorf("%d events: %q", len(store.events), store.events)
	}
	if text := strings.Join(store.events, ""); strings.Contains(text, "evil") {
		t.Errorf("an event quotes a record: %s", text)
	}
	a.reportSkips(nil)
	a.reportSkips([]subnet.Skip{good})
	if len(store.events) != skipEvents {
		t.Errorf("what was told within the hour is told again: %q", store.events)
	}
}

// TestMoreWasNotLogged: what was not logged is counted in the next line that is, once.
func TestMoreWasNotLogged(t *testing.T) {
	var log bytes.Buffer
	a := New(Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
	a.skips.logs = rate.NewLimiter(0, 0)
	for range 3 {
		a.logSkip(slog.LevelWarn, "left out")
	}
	a.skips.logs = rate.NewLimiter(rate.Inf, 1)
	for range 2 {
		a.logSkip(slog.LevelWarn, "left out")
	}
	if text := log.String(); strings.Count(text, "left out") != 2 || strings.Count(text, "more_of_this_was_not_logged=3") != 1 ||
		strings.Count(text, "more_of_this") != 1 {
		t.Errorf("logged was\n%s", text)
	}
}

// TestEventsComeAgain: after an hour the same may be told again, as far as there is room.
func TestEventsComeAgain(t *testing.T) {
	s, now, k := newSkips(), time.Now(), skipped{"node2", subnet.Unreadable}
	for after, want := range map[time.Duration]bool{0: true, time.Minute: false, skipEventRest: false, skipEventRest + time.Second: true} {
		s.reported = map[skipped]time.Time{k: now}
		if after == 0 {
			s.reported = map[skipped]time.Time{}
		}
		if got := s.mayReport(k, now.Add(after)); got != want {
			t.Errorf("%s later: told again %t, want %t", after, got, want)
		}
	}
	s = newSkips()
	for i := range 2 * skipEvents {
		if got := s.mayReport(skipped{node: strings.Repeat("x", i)}, now); got != (i < skipEvents) {
			t.Errorf("event %d of a moment is told: %t", i, got)
		}
	}
	if !s.mayReport(k, now.Add(10*time.Minute+time.Second)) {
		t.Error("ten minutes later there is no event")
	}
	if skipEvents != 5 || skipEventRest != time.Hour || skipLines != 100 {
		t.Error("other bounds than the manual's")
	}
}

// TestLogPlan: a plan is one line, with the kinds of object that it changes.
func TestLogPlan(t *testing.T) {
	var log bytes.Buffer
	a := New(Config{Planner: Planner{Node: "node1"}, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
	a.logPlan(netstate.Plan{{Want: netstate.Neigh{}}, {Want: netstate.Route{}}, {Was: netstate.Route{}}}, time.Millisecond, nil)
	if want := `msg="applied a plan" node=node1 changes=3 neigh=1 route=2 took=1ms` + "\n"; !strings.HasSuffix(log.String(), want) {
		t.Errorf("logged %s, want %s", log.String(), want)
	}
}

// TestFirstError: of errors that were joined the first is told, and how many more there are.
func TestFirstError(t *testing.T) {
	one, two, three := errors.New("one"), errors.New("two"), errors.New("three")
	for _, test := range []struct {
		err   error
		more  int
		first string
	}{
		{one, 0, "one"}, {errors.Join(one), 0, "one"}, {errors.Join(one, two, three), 2, "one"},
		{errors.Join(errors.Join(one, two), three), 2, "one"}, {fmt.Errorf("apply: %w", errors.Join(one, two)), 1, "apply: one"},
		{errors.Join(fmt.Errorf("+ addr: %w", errors.Join(one))), 0, "+ addr: one"},
	} {
		if more, first := firstError(test.err); more != test.more || first != test.first {
			t.Errorf("%v: %q and %d more, want %q and %d", test.err, first, more, test.first, test.more)
		}
	}
	if errText(nil) != "" || errText(errors.Join(one, two)) != ": one" {
		t.Errorf("as text: %q, %q", errText(nil), errText(errors.Join(one, two)))
	}
}

// networkReporter is a store that is told whether pods can be reached.
type networkReporter struct {
	reporter
	said []string
}

func (r *networkReporter) Network(up bool, reason, message string) {
	r.said = append(r.said, fmt.Sprintf("%t %s %s", up, reason, message))
}

func (r *networkReporter) Reached(all bool, reason, message string) {
	r.said = append(r.said, fmt.Sprintf("%t %s %s", all, reason, message))
}

// TestReportReach: the condition and the event say who does not answer first, and how many more.
func TestReportReach(t *testing.T) {
	store := &networkReporter{}
	a := New(Config{Store: store, Log: slog.New(slog.DiscardHandler)})
	gateway := reach.Unreached{Kind: reach.Gateway, Addr: netip.MustParseAddr("192.0.2.1"), Error: "no answer"}
	peer := func(name string) reach.Unreached {
		return reach.Unreached{Node: name, Addr: netip.MustParseAddr("10.244.2.1"), Error: "no answer"}
	}
	for _, all := range [][]reach.Unreached{{gateway}, {gateway, peer("node2"), peer("node2"), peer("node3")}, {peer("node2")}, nil} {
		a.reportReach(all)
		a.keepReached(all)
	}
	const lost, doctor = "no packet comes back from the default gateway (192.0.2.1): no answer", "; twillctl doctor says why"
	const node2 = "no packet comes back from node node2 (10.244.2.1): no answer"
	wantEvents := []string{"TargetsUnreached: " + lost + doctor, "PeersUnreached: " + node2 + "; nor from 2 more" + doctor,
		"PeersUnreached: " + node2 + doctor, "PeersReached: packets come back again from all that did not answer"}
	if !slices.Equal(store.events, wantEvents) {
		t.Errorf("events\n%q, want\n%q", store.events, wantEvents)
	}
	want := []string{"false TargetsUnreached " + lost, "false PeersUnreached " + node2 + "; nor from 2 more", "false PeersUnreached " + node2,
		"true PeersReached packets come back from all that are asked"}
	if !slices.Equal(store.said, want) {
		t.Errorf("said\n%q, want\n%q", store.said, want)
	}
}

// TestReportNetwork: a node that never worked says nothing, a ready one that it is up, and one that
// broke why.
func TestReportNetwork(t *testing.T) {
	store := &networkReporter{}
	a := New(Config{Store: store, Log: slog.New(slog.DiscardHandler)})
	a.reportNetwork(result{})
	a.status.update(true, false, nil)
	a.reportNetwork(result{})
	a.status.update(true, true, nil)
	a.status.degradedSince = time.Now().Add(-2 * unreadyAfter)
	a.reportNetwork(result{err: errors.New("no device")})
	want := []string{"true TwillIsUp Twill is running on this node", "false DataPathBroken the data path has been wrong for 1m0s: no device"}
	if !slices.Equal(store.said, want) {
		t.Errorf("said\n%q, want\n%q", store.said, want)
	}
}
