package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	alertsFile = "chart/monitoring/alerts.yaml"
	alertTests = "testdata/alerts.test.yaml"

	dashboardFile = "chart/monitoring/dashboard.json"
	metricsPage   = "../Documentation/metrics.md"
)

// ruleFile is a file of rules for Prometheus.
type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

// rule is an alert, or a recording rule.
type rule struct {
	Alert       string            `json:"alert,omitempty"`
	Record      string            `json:"record,omitempty"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// promtool finds Prometheus' own tool. Without it the test is skipped: not every system has a package of it.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../bin/prometheus/promtool")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err == nil {
		return path
	}
	path, err = exec.LookPath("promtool")
	if err != nil {
		t.Skipf("needs promtool, run `make kube-tools`: %v", err)
	}
	return path
}

func alerts(t *testing.T) []rule {
	t.Helper()
	var file ruleFile
	decode(t, alertsFile, &file)
	if len(file.Groups) != 1 || len(file.Groups[0].Rules) == 0 {
		t.Fatalf("%s has the groups %+v", alertsFile, file.Groups)
	}
	return file.Groups[0].Rules
}

func decode(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestAlerts has promtool play the cases of testdata with the alerts, and wants of each alert that it fires in one, keeps
// silent in another, and is explained.
func TestAlerts(t *testing.T) {
	var file struct {
		Tests []struct {
			Checks []struct {
				Name  string `json:"alertname"`
				Fires []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	decode(t, alertTests, &file)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Checks {
			if len(c.Fires) > 0 {
				fires[c.Name] = true
			} else {
				silent[c.Name] = true
			}
		}
	}
	page, err := os.ReadFile(metricsPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range alerts(t) {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: %s has a case where it fires: %t, and one where it does not: %t", r.Alert, alertTests, fires[r.Alert], silent[r.Alert])
		}
		row := fmt.Sprintf("\n| `%s` | %s | ", r.Alert, r.Labels["severity"])
		if !strings.Contains(string(page), row) {
			t.Errorf("Documentation/metrics.md has no row that begins with%s", row)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s has the annotations %v, want summary and description", r.Alert, r.Annotations)
		}
	}
	run(t, promtool(t), "test", "rules", alertTests)
}

// dashboard is of Grafana's format what matters here.
type dashboard struct {
	UID    string `json:"uid"`
	Title  string `json:"title"`
	Panels []struct {
		ID      int    `json:"id"`
		Type    string `json:"type"`
		Title   string `json:"title"`
		GridPos struct {
			H, W, X, Y int
		} `json:"gridPos"`
		Targets []struct {
			Expr       string `json:"expr"`
			Datasource any    `json:"datasource"`
		} `json:"targets"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
}

// TestDashboard: Prometheus' parser takes every query, and panels neither overlap nor share an ID. TestMetricsShown
// and TestMetricsNamed hold that it has the agents' metrics, and no others.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatalf("%s: %v", dashboardFile, err)
	}
	variables := []string{"$__rate_interval", "5m"}
	for _, v := range d.Templating.List {
		variables = append(variables, "$"+v.Name, "x")
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	var queries []rule
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the ID %d", p.ID)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := cells[cell]; other != "" || cell[0] >= 24 {
					t.Fatalf("panel %s overlaps %q or leaves the page, in column %d", p.Title, other, cell[0])
				}
				cells[cell] = p.Title
			}
		}
		if len(p.Targets) == 0 && p.Type != "row" {
			t.Errorf("panel %s has no query", p.Title)
		}
		for _, target := range p.Targets {
			expr := strings.NewReplacer(variables...).Replace(target.Expr)
			if strings.Contains(expr, "$") || !strings.Contains(expr, "twill") {
				t.Errorf("panel %s: %s has a variable that the dashboard lacks, or asks for nothing of Twill's", p.Title, target.Expr)
			}
			queries = append(queries, rule{Record: "twill:query", Expr: expr, Labels: map[string]string{"n": fmt.Sprint(len(queries))}})
		}
	}
	checkParsed(t, queries)
}

// checkParsed has Prometheus parse queries, as recording rules.
func checkParsed(t *testing.T, queries []rule) {
	t.Helper()
	tool := promtool(t)
	groups := map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": queries}}}
	data, err := json.Marshal(groups) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, tool, "check", "rules", path)
}

// TestMonitoringValues: the port has the name by which the PodMonitor looks for it, and the objects hold the files as they
// are. The chart's own values make none of it: TestRenders.
func TestMonitoringValues(t *testing.T) {
	all := parse(t, renderCase(t, "metrics-operator"))
	endpoint, _ := dig(all["PodMonitor/twill"], "spec", "podMetricsEndpoints").([]any)[0].(object)
	for _, c := range dig(all["DaemonSet/twill"], "spec", "template", "spec", "containers").([]any) {
		port, _ := dig(c, "ports").([]any)[0].(object)
		if port["name"] != endpoint["port"] || fmt.Sprint(port["containerPort"]) != "10267" {
			t.Errorf("the container's port is %v, and the PodMonitor scrapes %v", port, endpoint)
		}
	}
	var file any
	decode(t, alertsFile, &file)
	if got := all["PrometheusRule/twill"]["spec"]; !reflect.DeepEqual(got, file) {
		t.Errorf("the PrometheusRule has %v, want %v", got, file)
	}
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	text, _ := dig(parse(t, renderCase(t, "metrics"))["ConfigMap/twill-dashboard"], "data", "twill.json").(string)
	if err := errors.Join(json.Unmarshal(data, &want), json.Unmarshal([]byte(text), &got)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the ConfigMap's dashboard is another than %s, %v", dashboardFile, err)
	}
}
