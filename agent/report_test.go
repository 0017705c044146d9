package agent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twill-net/twill/subnet"
)

func TestClip(t *testing.T) {
	if got := clip("short"); got != "short" {
		t.Errorf("short: %q", got)
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
func (r *reporter) Watch(context.Context, func(subnet.Snapshot)) error { return nil }

// TestReportSkips: a node that says something else each time is told of, in few words that are not its own.
func TestReportSkips(t *testing.T) {
	var log bytes.Buffer
	store := &reporter{}
	a := New(Config{Node: "node1", Store: store, Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
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

// TestCodes: each code says something of its own.
func TestCodes(t *testing.T) {
	said := map[string]bool{}
	for _, c := range []subnet.Code{subnet.Unreadable, subnet.OtherBackend, subnet.OutsideNetwork, subnet.Unroutable, subnet.OwnAddress, subnet.MixedFamilies,
		subnet.OffLink, subnet.DuplicateSubnet, subnet.DuplicateMAC, subnet.DuplicateKey, subnet.BackendData, subnet.DifferentOptions, "another"} {
		if text := c.Meaning(); text == "" || said[text] {
			t.Errorf("%s: %q", c, text)
		}
		said[c.Meaning()] = true
	}
}
