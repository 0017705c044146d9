package deploy

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/backend/registry"
	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/subnet"
)

// admin runs kubectl and helm as the administrator of a cluster that is a genuine API server.
type admin struct {
	t                         *testing.T
	kubectl, helm, kubeconfig string
}

func startCluster(t *testing.T) admin {
	t.Helper()
	a := admin{t: t, kubectl: controlplanetest.Binary(t, "kubectl"), helm: helm(t)}
	a.kubeconfig = controlplanetest.Start(t, controlplane.APIServerConfig{}).KubeconfigFile(controlplane.Admin)
	return a
}

// do runs a program with the cluster's kubeconfig, and gives all that it printed.
func (a admin) do(stdin, program string, args ...string) (string, error) {
	a.t.Helper()
	c := exec.CommandContext(a.t.Context(), program, append(args, "--kubeconfig="+a.kubeconfig)...)
	c.Stdin = strings.NewReader(stdin)
	out, err := c.CombinedOutput()
	return string(out), err
}

func (a admin) must(stdin, program string, args ...string) string {
	a.t.Helper()
	out, err := a.do(stdin, program, args...)
	if err != nil {
		a.t.Fatalf("%s %q: %v\n%s", filepath.Base(program), args, err, out)
	}
	return out
}

// TestServerTakesEverything has a genuine API server check every render and every kustomization: unknown fields, values
// that it refuses, and warnings are errors.
func TestServerTakesEverything(t *testing.T) {
	a := startCluster(t)
	for _, namespace := range []string{namespace, "20261122"} { // a dry run does not make them
		a.must("", a.kubectl, "create", "namespace", namespace)
	}
	manifests := map[string]string{}
	for _, name := range cases(t) {
		if name != "metrics-operator" { // its kinds are those of the Prometheus operator
			manifests[name] = renderCase(t, name)
		}
	}
	for _, kustomization := range []string{"base", "self-lease", "tun"} {
		manifests["kustomization "+kustomization] = run(t, a.kubectl, "kustomize", kustomization)
	}
	twill, err := os.ReadFile("../Documentation/twill.yml")
	if err != nil {
		t.Fatal(err)
	}
	manifests["twill.yml"] = string(twill)
	const typo = "      hostNetwork: true\n"
	manifests["a typo"] = strings.Replace(string(twill), typo, "      hostNetworks: true\n", 1)
	for name, manifest := range manifests {
		out, err := a.do(manifest, a.kubectl, "apply", "--server-side", "--dry-run=server", "--validate=strict",
			"--warnings-as-errors", "--filename=-")
		if refused := err != nil || strings.Contains(out, "Warning"); refused != (name == "a typo") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		if got, want := strings.Count(out, "serverside-applied"), strings.Count("\n"+manifest, "\nkind: "); err == nil && got != want {
			t.Errorf("%s: the server took %d objects, want %d\n%s", name, got, want, out)
		}
	}
}

// state is what an upgrade may alter.
type state struct {
	config, pods string
	rights       bool // of agents that lease subnets themselves
}

func (a admin) state(namespace string) state {
	a.t.Helper()
	read := func(kind, path string) string {
		return a.must("", a.kubectl, "--namespace", namespace, "get", kind, "twill", "--output=jsonpath={"+path+"}")
	}
	_, err := a.do("", a.kubectl, "get", "clusterrole", "twill-self-lease")
	return state{read("configmap", `.data.net-conf\.json`), read("daemonset", ".spec.template"), err == nil}
}

// TestRollback holds what Documentation/upgrade.md says of the ways back: helm brings back everything, and an old manifest
// what is in it, but not what only the newer one has.
func TestRollback(t *testing.T) {
	a := startCluster(t)
	apply := func(manifest string) { a.must(manifest, a.kubectl, "apply", "--filename=-") }
	older, newer := run(t, a.kubectl, "kustomize", "base"), run(t, a.kubectl, "kustomize", "self-lease")
	newer = strings.ReplaceAll(newer, `"Type":"vxlan"`, `"Type":"host-gw"`)
	for _, way := range []struct {
		name, namespace        string
		install, upgrade, back func()
		rights                 bool // stay
	}{
		{
			name: "helm rollback", namespace: "twill-release",
			install: func() {
				a.must("", a.helm, "install", "twill", "chart", "--namespace=twill-release", "--create-namespace")
			},
			upgrade: func() {
				a.must("", a.helm, "upgrade", "twill", "chart", "--namespace=twill-release", "--set=selfLease=true", "--set=backend.Type=host-gw")
			},
			back: func() { a.must("", a.helm, "rollback", "twill", "--namespace=twill-release") },
		},
		{
			name: "the old manifest", namespace: namespace, rights: true,
			install: func() { a.must("", a.helm, "uninstall", "twill", "--namespace=twill-release"); apply(older) },
			upgrade: func() { apply(newer) },
			back:    func() { apply(older) },
		},
	} {
		way.install()
		before := a.state(way.namespace)
		way.upgrade()
		if now := a.state(way.namespace); now.config == before.config || now.pods == before.pods || !now.rights || before.rights {
			t.Errorf("%s: the upgrade made of\n%+v\nthis:\n%+v", way.name, before, now)
		}
		way.back()
		before.rights = way.rights
		if now := a.state(way.namespace); now != before {
			t.Errorf("%s: there is now\n%+v\nwant\n%+v", way.name, now, before)
		}
	}
}

// TestManifestCredentials gives the manifest's agents a Secret as Documentation/helm.md says.
func TestManifestCredentials(t *testing.T) {
	a := startCluster(t)
	page, err := os.ReadFile("../Documentation/helm.md")
	if err != nil {
		t.Fatal(err)
	}
	const command = "--namespace kube-twill set env daemonset/twill --containers twilld --from secret/cloud"
	if !strings.Contains(string(page), "`kubectl "+command+"`") {
		t.Errorf("the page does not say kubectl %s", command)
	}
	a.must("", a.kubectl, "apply", "--filename=../Documentation/twill.yml")
	a.must("", a.kubectl, "--namespace="+namespace, "create", "secret", "generic", "cloud",
		"--from-literal=ACCESS_KEY_ID=id", "--from-literal=ACCESS_KEY_SECRET=secret")
	a.must("", a.kubectl, strings.Fields(command)...)
	for container, want := range map[string]string{"containers": "ACCESS_KEY_ID ACCESS_KEY_SECRET GOGC NODE_NAME", "initContainers": ""} {
		got := a.must("", a.kubectl, "--namespace="+namespace, "get", "daemonset", "twill",
			"--output=jsonpath={.spec.template.spec."+container+"[0].env[*].name}")
		names := strings.Fields(got)
		slices.Sort(names) // kubectl adds those of a Secret in any order
		if got := strings.Join(names, " "); got != want {
			t.Errorf("the %s have the variables %s, want %s", container, got, want)
		}
	}
	a.must("", a.kubectl, "apply", "--filename=../Documentation/twill.yml")
	if got := a.must("", a.kubectl, "--namespace="+namespace, "get", "daemonset", "twill",
		"--output=jsonpath={.spec.template.spec.containers[0].env[*].name}"); !strings.Contains(got, "ACCESS_KEY_ID") {
		t.Errorf("applying the manifest again leaves the variables %s", got)
	}
}

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestHelmPage runs the commands of Documentation/helm.md, in their order, against a genuine API server.
func TestHelmPage(t *testing.T) {
	a := startCluster(t)
	page, err := os.ReadFile("../Documentation/helm.md")
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(here, filepath.Join(dir, "deploy")); err != nil {
		t.Fatal(err)
	}
	blocks := shellBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 4 {
		t.Errorf("the page has %d blocks of commands, want 4", len(blocks))
	}
	for _, block := range blocks {
		c := exec.CommandContext(t.Context(), "bash", "-euc", block[1])
		c.Dir = dir
		c.Env = append(os.Environ(), "KUBECONFIG="+a.kubeconfig, "HOME="+dir,
			"PATH="+filepath.Dir(a.kubectl)+":"+filepath.Dir(a.helm)+":"+os.Getenv("PATH"))
		if out, err := c.CombinedOutput(); err != nil || strings.Contains(string(out), "Warning") {
			t.Fatalf("%v: %s\n%s", err, block[1], out)
		}
	}
	secret := a.must("", a.kubectl, "--namespace=twill-system", "get", "daemonset", "twill",
		"--output=jsonpath={.spec.template.spec.containers[0].envFrom[0].secretRef.name}")
	if secret != "cloud" {
		t.Errorf("the agents have the environment of the Secret %q, want cloud's", secret)
	}
	data := a.must("", a.kubectl, "--namespace=twill-system", "get", "secret", "twill-net-conf", "--output=jsonpath={.data.net-conf\\.json}")
	text, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := subnet.ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, warnings, err := registry.New(conf.Backend, conf.Pools, conf.Options); err != nil || len(warnings) > 0 || conf.Backend != "wireguard" {
		t.Errorf("the Secret's network config has the backend %s, %v, %q", conf.Backend, err, warnings)
	}
}
