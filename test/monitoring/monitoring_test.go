package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"testing"

	"github.com/twill-net/twill/internal/testwait"
)

// TestPrometheus: with the page's config Prometheus has every metric of every agent, all queries of the dashboard have
// answers, and the alerts follow what happens.
func TestPrometheus(t *testing.T) {
	find(t)
	l := up(t)
	s := start(t, l)
	s.becomes(`up{job="twill"}`, map[string]string{"node1": "1", "node2": "1"})
	s.becomes(`up`, map[string]string{"node1": "1", "node2": "1"}) // and nothing else is scraped
	s.becomes(`twill_ready`, map[string]string{"node1": "1", "node2": "1"})
	s.becomes(`twill_peers`, map[string]string{"node1": "1", "node2": "1"})
	s.becomes(`count by (instance) (twill_pod_addresses_used)`, map[string]string{"node1": "1", "node2": "1"})
	t.Run("metrics", func(t *testing.T) { server{t, s.client}.metrics() })
	t.Run("dashboard", func(t *testing.T) { server{t, s.client}.dashboard() })
	t.Run("rules", func(t *testing.T) { server{t, s.client}.rules() })
	s.becomes(`ALERTS`, map[string]string{})
	if err := l.Nodes()[1].KillAgent(); err != nil {
		t.Fatal(err)
	}
	s.becomes(`ALERTS{alertname="TwillAgentDown", alertstate="pending"}`, map[string]string{"node2": "1"})
	if err := l.Nodes()[1].StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.becomes(`ALERTS{alertname="TwillAgentDown"}`, map[string]string{})
}

// becomes waits until a query has these values.
func (s server) becomes(query string, want map[string]string) {
	s.Helper()
	testwait.Nil(s, query, func() error {
		got, err := s.series(query)
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("it is %v, want %v", got, want)
		}
		return err
	})
}

// noOccasion are metrics without data in this lab, whose store is a file and whose agents enforce policies, and a panel that shows
// one.
var noOccasion = map[string]bool{"twill_certificate_end_timestamp_seconds": true, "Until leases and certificates end": true,
	"twill_policy_audited_packets_total": true, "twill_reach_peer_unreached": true, "twill_reach_target_unreached": true}

// metric is a name in a query.
var metric = regexp.MustCompile("twill_[a-z_]+")

// part ends the name of a histogram's part.
var part = regexp.MustCompile("_(bucket|count|sum)$")

// threshold ends a query that has no data while all is well.
var threshold = regexp.MustCompile(` > [0-9.]+$`)

// metrics: every metric of the dashboard, which has all, is there from both agents.
func (s server) metrics() {
	var types map[string][]struct{ Type string }
	if err := s.ask("metadata", nil, &types); err != nil {
		s.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range metric.FindAllString(read(s.T, "deploy/chart/monitoring/dashboard.json"), -1) {
		names[part.ReplaceAllString(name, "")] = true
	}
	for name := range names {
		if noOccasion[name] {
			continue
		}
		if len(types[name]) != 1 {
			s.Errorf("the types of %s are %v, want one", name, types[name])
		} else if types[name][0].Type == "histogram" {
			name += "_count"
		}
		if got, err := s.series(name); err != nil || got["node1"] == "" || got["node2"] == "" {
			s.Errorf("%s is %v, %v", name, got, err)
		}
	}
	for name := range types {
		if !names[name] {
			s.Errorf("the dashboard does not show %s", name)
		}
	}
	if len(names) < 10 {
		s.Errorf("the dashboard has %d metrics, there are more", len(names))
	}
}

// dashboard: every query is answered, and has data unless it shows what should not be.
func (s server) dashboard() {
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(s.T, "deploy/chart/monitoring/dashboard.json")), &board); err != nil {
		s.Fatal(err)
	}
	asked := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			asked++
			query := strings.NewReplacer("$job", "twill", "$instance", ".*", "$__rate_interval", "10m").Replace(target.Expr)
			s.answered(p.Title, query)
		}
	}
	if asked < 15 {
		s.Errorf("%d queries asked, the dashboard has more", asked)
	}
}

// answered waits until a query has data: a rate needs two scrapes.
func (s server) answered(title, query string) {
	s.Helper()
	testwait.Nil(s, title+": "+query, func() error {
		got, err := s.series(query)
		if err == nil && len(got) == 0 && !threshold.MatchString(query) && !noOccasion[title] && !noOccasion[metric.FindString(query)] {
			err = errors.New("it has no data")
		}
		return err
	})
}

// rules: Prometheus evaluates all alerts.
func (s server) rules() {
	var got struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	want := strings.Count(read(s.T, "deploy/chart/monitoring/alerts.yaml"), "\n  - alert: ")
	testwait.Nil(s, fmt.Sprintf("%d rules that work", want), func() error {
		if err := s.ask("rules", nil, &got); err != nil {
			return err
		}
		fine := 0
		for _, g := range got.Groups {
			for _, r := range g.Rules {
				if r.Health == "ok" {
					fine++
				}
			}
		}
		if fine != want {
			return errors.New(fmt.Sprint(got))
		}
		return nil
	})
}
