package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestChartRefuses: values that cannot be meant are refused, and the message names them.
func TestChartRefuses(t *testing.T) {
	path := helm(t)
	for set, want := range map[string]string{
		"podCidr=10.0.0.0/8":                   "additional properties 'podCidr' not allowed",
		"flannel.backend=vxlan":                "additional properties 'flannel' not allowed",
		"image=twill:v9":                       "at '/image': got string, want object",
		"image.digest=sha256:12":               "at '/image/digest'",
		"image.pullPolicy=never":               "at '/image/pullPolicy'",
		"network=10.244.0.0":                   "at '/network'",
		"network=fd00::/48":                    "at '/network'",
		"network=":                             "network and ipv6Network are both empty: set at least one of them to the pods' network",
		"ipv6Network=10.0.0.0/8":               "at '/ipv6Network'",
		"backend.Type=vxaln":                   "at '/backend/Type': value must be one of 'ali-vpc'",
		"backend.TxChecksum=false":             "at '/backend/TxChecksum': value must be one of 'auto', 'on', 'off'",
		"backend.Type=null":                    "missing property 'Type'",
		"netConf.SubnetLne=24":                 "additional properties 'SubnetLne' not allowed",
		"netConf.SubnetLen=x":                  "at '/netConf/SubnetLen': got string, want integer",
		"netConfSecret=A_b":                    "at '/netConfSecret'",
		"annotationPrefix=a/b":                 "at '/annotationPrefix'",
		"clusterNetworkPolicy=true":            "clusterNetworkPolicy has no effect without networkPolicy: set both",
		"networkPolicyLog=true":                "networkPolicyLog has no effect without networkPolicy: set both",
		"networkPolicy=on":                     "at '/networkPolicy': value must be one of true, false, 'audit'",
		"fastPath=true,backend.Type=ipip":      "fastPath has no effect with the backend ipip: want vxlan or host-gw",
		"fastPath=on":                          "at '/fastPath': got string, want boolean",
		"selfLease=yes":                        "at '/selfLease': got string, want boolean",
		"extraArgs={iface=eth1}":               "at '/extraArgs/0'",
		"cniBinDir=opt/cni/bin":                "at '/cniBinDir'",
		"healthz.port=70000":                   "at '/healthz/port'",
		"healthz.address=":                     "at '/healthz/address'",
		"metrics.podMonitor=true":              "Prometheus does not reach 127.0.0.1 port 10267 of a node: set healthz.address to 0.0.0.0",
		"metrics.interval=30":                  "at '/metrics/interval'",
		"metrics.enabled=true":                 "at '/metrics': additional properties 'enabled' not allowed",
		"maxUnavailable=0":                     "at '/maxUnavailable'",
		"maxUnavailable=110%":                  "at '/maxUnavailable'",
		"podLabels.a=1":                        "at '/podLabels/a': got number, want string",
		"resources.request.cpu=1":              "at '/resources': additional properties 'request' not allowed",
		`podLabels.app\.kubernetes\.io/name=x`: "at '/podLabels/app.kubernetes.io~1name': value must be 'twill'",
	} {
		out, err := exec.CommandContext(t.Context(), path, "template", "twill", "chart", "--set", set).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("--set %s: %v\n%s\nwant %s", set, err, out, want)
		}
	}
}

// TestChartLints has helm's own linter look at the chart with each case's values.
func TestChartLints(t *testing.T) {
	for _, name := range cases(t) {
		run(t, helm(t), "lint", "--strict", "--quiet", "chart", "--values", "testdata/"+name+".values.yaml")
	}
}

// TestChartVersions: the chart, its image and the base have the same version.
func TestChartVersions(t *testing.T) {
	data, err := os.ReadFile("chart/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	image, _ := dig(read(t, "../Documentation/twill.yml")["DaemonSet/twill"], "spec", "template", "spec", "containers").([]any)[0].(object)["image"].(string)
	_, version, _ := strings.Cut(image, ":v")
	if want := "\nversion: " + version + "\nappVersion: v" + version + "\n"; !strings.Contains(string(data), want) {
		t.Errorf("the manifest has %s, Chart.yaml is\n%s\nwant in it%s", image, data, want)
	}
}

// TestChartNamespace renders the chart for a namespace that helm was told: everything is there, and the
// namespace is not the chart's.
func TestChartNamespace(t *testing.T) {
	const namespace = "20261122" // text, though it is a number
	text := renderCase(t, "labels")
	if strings.Contains(text, "kube-twill") {
		t.Error("an object names kube-twill")
	}
	all := parse(t, text)
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

// TestChartLabels: every object has the common labels and annotations, and those of its kind go before them.
func TestChartLabels(t *testing.T) {
	kinds := map[string]string{"ServiceAccount": "account", "ConfigMap": "config", "DaemonSet": "agents"}
	for name, o := range parse(t, renderCase(t, "labels")) {
		kind, _, _ := strings.Cut(name, "/")
		want := kinds[kind]
		if want == "" {
			want = "rights"
		}
		for _, field := range []string{"labels", "annotations"} {
			if got := dig(o, "metadata", field, "of"); got != want {
				t.Errorf("%s of %s: %v, want %s", field, name, got, want)
			}
		}
		if team, note := dig(o, "metadata", "labels", "team"), dig(o, "metadata", "annotations", "note"); team != "network" || note != "common" {
			t.Errorf("%s has team %v and note %v", name, team, note)
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
	want := []string{"--iface=eth1 # not a comment", "--iface=a: b", "--iface-regex=^e\\d{1,3}\"x", "-v=1", "--ip-masq-fully-random-disable"}
	args := arguments(parse(t, renderCase(t, "pods")))
	if got := args[max(0, len(args)-len(want)):]; !slices.Equal(got, want) {
		t.Errorf("the agent's last arguments are %q, want %q", got, want)
	}
}

// TestChartChecksum: another config replaces the pods, and nothing else does.
func TestChartChecksum(t *testing.T) {
	sum := func(set ...string) any {
		return dig(render(t, set...)["DaemonSet/twill"], "spec", "template", "metadata", "annotations", "checksum/config")
	}
	own := sum()
	if own == nil || sum("backend.Type=host-gw") == own || sum("network=10.0.0.0/8") == own || sum("image.tag=v9") != own {
		t.Errorf("the pods' checksum of the config is %v: want one that another config changes, and nothing else", own)
	}
}
