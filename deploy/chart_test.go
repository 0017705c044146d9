package deploy

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/subnet"
)

var update = flag.Bool("update", false, "write testdata/*.golden.yaml")

// releases are the cases of testdata that are installed in another namespace than default.
var releases = map[string]string{"labels": "20261122"}

// cases are the names of the files testdata/NAME.values.yaml.
func cases(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("testdata has the values %v, %v", paths, err)
	}
	for i, path := range paths {
		paths[i] = strings.TrimSuffix(filepath.Base(path), ".values.yaml")
	}
	return paths
}

// helm finds genuine helm. Without it the test is skipped, and in CI (environment CI=true) it fails.
func helm(t *testing.T) string {
	t.Helper()
	testall.Needs(t, "a built helm")
	path, err := filepath.Abs("../bin/helm")
	if err == nil {
		_, err = os.Stat(path)
	}
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("run `make kube-tools`: %v", err)
	default:
		t.Skipf("needs helm, run `make kube-tools`: %v", err)
	}
	return path
}

// run runs a program and gives what it wrote to its standard output, or fails.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", filepath.Base(name), args, err, stderr.String())
	}
	if said := stderr.String(); said != "" {
		t.Errorf("%s %q warns: %s", filepath.Base(name), args, said)
	}
	return string(out)
}

// renderCase is what helm makes of the chart with the values of testdata.
func renderCase(t *testing.T, name string) string {
	t.Helper()
	args := []string{"template", "twill", "chart", "--values", "testdata/" + name + ".values.yaml"}
	if namespace := releases[name]; namespace != "" {
		args = append(args, "--namespace", namespace)
	}
	return run(t, helm(t), args...)
}

// render is what helm makes of the chart with values on the command line.
func render(t *testing.T, set ...string) map[string]object {
	t.Helper()
	args := []string{"template", "twill", "chart"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return parse(t, run(t, helm(t), args...))
}

// TestRenders compares each render with the one that was looked at and checked in, and holds that the agents take its
// config without a warning. Objects that the chart's own values render the same are left out.
func TestRenders(t *testing.T) {
	plain := strings.Split(renderCase(t, "defaults"), "---\n")
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			text := renderCase(t, name)
			var golden strings.Builder
			for _, document := range strings.Split(text, "---\n") {
				if document != "" && (name == "defaults" || !slices.Contains(plain, document)) {
					golden.WriteString("---\n" + document)
				}
			}
			path := "testdata/" + name + ".golden.yaml"
			if *update {
				if err := os.WriteFile(path, []byte(golden.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(path); err != nil || string(want) != golden.String() {
				t.Errorf("%s is not what helm makes (%v): look at the difference after go test ./deploy -run TestRenders -update", path, err)
			}
			all := parse(t, text)
			checkConfig(t, all)
			got, want := walls(all), walls(read(t, "../Documentation/twill.yml"))
			if name == "fast-path" {
				want = walls(parse(t, run(t, controlplanetest.Binary(t, "kubectl"), "kustomize", "fast-path")))
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("the pods have the rights %v, want the manifest's %v", got, want)
			}
		})
	}
}

// walls are what keeps the agents' pods from the host.
func walls(all map[string]object) []any {
	pod := dig(all["DaemonSet/twill"], "spec", "template", "spec").(object)
	walls := []any{pod["securityContext"], pod["hostPID"], pod["hostIPC"], pod["shareProcessNamespace"]}
	for _, c := range append(pod["initContainers"].([]any), pod["containers"].([]any)...) {
		walls = append(walls, dig(c, "securityContext"))
	}
	return walls
}

// checkConfig has the agent's own parsers read the network config and the CNI config.
func checkConfig(t *testing.T, all map[string]object) {
	t.Helper()
	data, _ := all["ConfigMap/twill"]["data"].(object)
	var conflist struct{ Name string }
	if err := json.Unmarshal([]byte(data["cni-conf.json"].(string)), &conflist); err != nil || conflist.Name != "cbr0" {
		t.Errorf("cni-conf.json has the name %q, %v", conflist.Name, err)
	}
	text, ok := data["net-conf.json"].(string)
	if !ok {
		return // it is in a Secret
	}
	conf, err := subnet.ParseConfig([]byte(text))
	if err != nil {
		t.Fatalf("net-conf.json: %v\n%s", err, text)
	}
	_, warnings, err := registry.New(conf.Backend, conf.Pools, conf.Options)
	if warnings = append(warnings, conf.Warnings...); err != nil || len(warnings) > 0 {
		t.Errorf("net-conf.json: %v, and the warnings %q\n%s", err, warnings, text)
	}
}

// TestChartIsTheManifest compares what helm makes of the chart with what kubectl makes of the kustomizations.
func TestChartIsTheManifest(t *testing.T) {
	kubectl := controlplanetest.Binary(t, "kubectl")
	for kustomization, values := range map[string][]string{
		"base":                   nil,
		"self-lease":             {"selfLease=true"},
		"network-policy":         {"networkPolicy=true"},
		"cluster-network-policy": {"networkPolicy=true", "clusterNetworkPolicy=true"},
		"tun":                    {"backend.Type=udp"},
		"fast-path":              {"fastPath=true"},
	} {
		t.Run(kustomization, func(t *testing.T) {
			got := render(t, values...)
			made := run(t, kubectl, "kustomize", kustomization)
			if kustomization == "tun" {
				made = strings.ReplaceAll(made, `"Type":"vxlan"`, `"Type":"udp"`)
			}
			if kustomization == "fast-path" { // who applies it says so in net-conf.json, too
				made = strings.ReplaceAll(made, `"Type":"vxlan"`, `"FastPath":true,"Type":"vxlan"`)
			}
			pod := dig(got["DaemonSet/twill"], "spec", "template", "metadata").(object)
			if sum := fmt.Sprint(pod["annotations"]); !regexp.MustCompile(`^map\[checksum/config:[0-9a-f]{64}\]$`).MatchString(sum) {
				t.Errorf("the pods have the annotations %s, want the config's checksum alone", sum)
			}
			delete(pod, "annotations")
			want := parse(t, made)
			for name := range want {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s: helm makes\n%v\nkubectl makes\n%v", name, got[name], want[name])
				}
			}
			if len(got) != len(want) {
				t.Errorf("helm makes %d objects, kubectl %d", len(got), len(want))
			}
		})
	}
}

// TestEveryValueIsRendered: each of the chart's values is another one in some case of testdata, and the schema knows it.
func TestEveryValueIsRendered(t *testing.T) {
	own, seen := leaves("", ownValues(t)), map[string]bool{}
	for _, name := range cases(t) {
		for key, value := range leaves("", readValues(t, "testdata/"+name+".values.yaml")) {
			for known, before := range own {
				if (key == known || strings.HasPrefix(key, known+".")) && !reflect.DeepEqual(value, before) {
					seen[known] = true
				}
			}
		}
	}
	for key := range own {
		if !seen[key] {
			t.Errorf("no case of testdata sets the value %s to another one", key)
		}
	}
	var schema struct{ Properties map[string]any }
	data, err := os.ReadFile("chart/values.schema.json")
	if err == nil {
		err = json.Unmarshal(data, &schema)
	}
	if err != nil {
		t.Fatal(err)
	}
	for key := range schema.Properties {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(own)), func(k string) bool { return k == key || strings.HasPrefix(k, key+".") }) && key != "global" {
			t.Errorf("the schema has %s, which values.yaml has not", key)
		}
	}
}

// ownValues are the chart's values.yaml.
func ownValues(t *testing.T) object { return readValues(t, "chart/values.yaml") }

func readValues(t *testing.T, path string) object {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	values := object{}
	if err := yaml.Unmarshal(data, &values); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return values
}

// leaves gives the values that are no maps, or empty ones, by their path. Labels are one value.
func leaves(prefix string, v object) map[string]any {
	all := map[string]any{}
	for key, value := range v {
		if deeper, ok := value.(object); ok && len(deeper) > 0 && key != "nodeSelector" {
			maps.Copy(all, leaves(prefix+key+".", deeper))
		} else {
			all[prefix+key] = value
		}
	}
	return all
}
