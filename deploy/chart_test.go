package deploy

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// render gives the chart's files by name, as helm makes them of its own values and others. The chart uses few enough
// functions for text/template; TestChartRendersAsKustomize has genuine helm do it.
func render(t *testing.T, releaseNamespace, values string) map[string]string {
	t.Helper()
	all := object{}
	for _, text := range []string{Values, values} {
		some := object{}
		if err := yaml.Unmarshal([]byte(text), &some); err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, some)
	}
	var root *template.Template
	root = template.New("twill").Funcs(template.FuncMap{
		"toJson":    func(v any) (string, error) { b, err := json.Marshal(v); return string(b), err },
		"quote":     strconv.Quote,
		"sha256sum": func(s string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(s))) },
		"include": func(name string, data any) (string, error) {
			var b strings.Builder
			err := root.ExecuteTemplate(&b, name, data)
			return b.String(), err
		},
	})
	paths, err := filepath.Glob("chart/templates/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil {
			_, err = root.New("twill/templates/" + filepath.Base(path)).Parse(string(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{}
	for _, path := range paths {
		name := filepath.Base(path)
		var b strings.Builder
		data := object{"Values": all, "Release": object{"Namespace": releaseNamespace}, "Template": object{"BasePath": "twill/templates"}}
		if err := root.ExecuteTemplate(&b, "twill/templates/"+name, data); err != nil {
			t.Fatal(err)
		}
		if text := strings.TrimSpace(b.String()); text != "" {
			files[name] = text
		}
	}
	return files
}

// objects gives the objects of rendered files by kind and name.
func objects(t *testing.T, files map[string]string) map[string]object {
	t.Helper()
	return parse(t, strings.Join(slices.Collect(maps.Values(files)), "\n---\n"))
}

// TestChartIsTheBase renders the chart with its own values.
func TestChartIsTheBase(t *testing.T) {
	files := render(t, "default", "")
	for _, name := range sources {
		base, err := os.ReadFile(filepath.Join("base", name))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string // without what only the chart has
		for line := range strings.Lines(files[name]) {
			if text := strings.TrimSpace(line); text != "annotations:" && !strings.HasPrefix(text, "checksum/config: ") {
				lines = append(lines, line)
			}
		}
		if got := strings.Join(lines, ""); got != strings.TrimSpace(string(base)) {
			t.Errorf("%s renders as\n%s", name, got)
		}
		delete(files, name)
	}
	if len(files) > 0 {
		t.Errorf("beside the base there are %q", files)
	}
}

// TestChartNamespace renders the chart for a namespace that helm was told: everything is there, and the
// namespace is not the chart's.
func TestChartNamespace(t *testing.T) {
	const namespace = "20261122" // text, though it is a number
	files := render(t, namespace, "selfLease: true")
	for name, text := range files {
		if strings.Contains(text, "kube-twill") {
			t.Errorf("%s names kube-twill:\n%s", name, text)
		}
	}
	all := objects(t, files)
	for name, o := range all {
		kind, _, _ := strings.Cut(name, "/")
		ns := dig(o, "metadata", "namespace")
		switch kind {
		case "Namespace":
			t.Errorf("the chart makes %s", name)
		case "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			if ns != nil {
				t.Errorf("%s has the namespace %v", name, ns)
			}
		default:
			if ns != namespace {
				t.Errorf("%s has the namespace %#v, want %s", name, ns, namespace)
			}
		}
	}
	if args := arguments(all); !slices.Contains(args, "--kube-lease-namespace="+namespace) {
		t.Errorf("the agent's arguments are %q", args)
	}
	for _, policy := range []string{"twill-own-node", "twill-own-claims"} {
		condition := fmt.Sprint(dig(all["ValidatingAdmissionPolicy/"+policy], "spec", "matchConditions"))
		if !strings.Contains(condition, `"system:serviceaccount:`+namespace+`:twill"`) {
			t.Errorf("policy %s is for %s", policy, condition)
		}
	}
}

func arguments(all map[string]object) []string {
	var args []string
	for _, c := range dig(all["DaemonSet/twill"], "spec", "template", "spec", "containers").([]any) {
		for _, a := range dig(c, "args").([]any) {
			args = append(args, fmt.Sprint(a))
		}
	}
	return args
}

// TestChartArguments holds that further flags arrive as they were said, whatever YAML makes of such text.
func TestChartArguments(t *testing.T) {
	want := []string{"--iface=eth1 # not a comment", "--v: 1", "--iface-regex=^e\\d{1,3}\"x", "true", "- -"}
	values, err := json.Marshal(object{"extraArgs": want})
	if err != nil {
		t.Fatal(err)
	}
	args := arguments(objects(t, render(t, "default", string(values))))
	if got := args[len(args)-len(want):]; !slices.Equal(got, want) {
		t.Errorf("the agent's last arguments are %q, want %q", got, want)
	}
}

// TestChartValues renders other values than the chart's own.
func TestChartValues(t *testing.T) {
	sumOf := func(values string) any {
		return dig(objects(t, render(t, "default", values))["DaemonSet/twill"], "spec", "template", "metadata", "annotations", "checksum/config")
	}
	own := sumOf("")
	if own == nil || sumOf("backend: {Type: host-gw}") == own || sumOf("image: other") != own {
		t.Errorf("the pod's checksum of the config is %v: want one that another config changes, and nothing else", own)
	}
	for backend, tun := range map[string]bool{"udp": true, "wireguard": true, "host-gw": false} {
		files := render(t, "default", "backend: {Type: "+backend+"}\nenableIPv6: true\nnetwork: 10.0.0.0/8\nmaxUnavailable: 1\nimagePullPolicy: Always")
		all := objects(t, files)
		if strings.Contains(files["daemonset.yaml"], "/dev/net/tun") != tun {
			t.Errorf("with %s agents have /dev/net/tun: %t, want %t", backend, !tun, tun)
		}
		var conf struct {
			Network    string
			EnableIPv6 bool
			Backend    struct{ Type string }
		}
		text := fmt.Sprint(dig(all["ConfigMap/twill"], "data", "net-conf.json"))
		if err := json.Unmarshal([]byte(text), &conf); err != nil || conf.Network != "10.0.0.0/8" || !conf.EnableIPv6 || conf.Backend.Type != backend {
			t.Errorf("net-conf.json is %s, %v", text, err)
		}
		if got := dig(all["DaemonSet/twill"], "spec", "updateStrategy", "rollingUpdate", "maxUnavailable"); fmt.Sprint(got) != "1" {
			t.Errorf("maxUnavailable is %v, want 1", got)
		}
	}
}
