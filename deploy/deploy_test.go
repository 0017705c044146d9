package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

func TestMadeFilesAreCurrent(t *testing.T) {
	files, err := Files(".")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(filepath.Join("..", path)); err != nil || string(got) != want {
			t.Errorf("%s is out of date (%v): run go generate ./deploy", path, err)
		}
	}
}

func TestKustomizationNamesEverything(t *testing.T) {
	data, err := os.ReadFile("base/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var k struct{ Resources []string }
	if err := yaml.Unmarshal(data, &k); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(k.Resources, sources) {
		t.Errorf("kustomization.yaml has %v, want %v", k.Resources, sources)
	}
}

type object = map[string]any

// TestNothingIsLooserThanNeeded walks the manifest: every right and every hole in the container's walls has to be in
// these lists.
func TestNothingIsLooserThanNeeded(t *testing.T) {
	objects := read(t, "../Documentation/twill.yml")
	rules := objects["ClusterRole/twill"]["rules"]
	if want := []any{
		object{"apiGroups": []any{""}, "resources": []any{"nodes"}, "verbs": []any{"get", "list", "watch"}},
		object{"apiGroups": []any{""}, "resources": []any{"nodes/status"}, "verbs": []any{"patch"}},
		object{"apiGroups": []any{""}, "resources": []any{"events"}, "verbs": []any{"create"}},
	}; !reflect.DeepEqual(rules, want) {
		t.Errorf("the agent's rights are %v, want %v", rules, want)
	}
	if want := []any{object{"apiGroups": []any{"coordination.k8s.io"}, "resources": []any{"leases"},
		"verbs": []any{"get", "list", "watch", "create", "patch"}}}; !reflect.DeepEqual(objects["Role/twill"]["rules"], want) {
		t.Errorf("the agent's rights in its namespace are %v, want %v", objects["Role/twill"]["rules"], want)
	}
	for name := range objects {
		if kind, of, _ := strings.Cut(name, "/"); strings.Contains(kind, "Role") && of != "twill" {
			t.Errorf("%s gives further rights", name)
		}
	}
	pod := dig(objects["DaemonSet/twill"], "spec", "template", "spec").(object)
	for _, key := range []string{"hostPID", "hostIPC", "shareProcessNamespace"} {
		if pod[key] != nil {
			t.Errorf("the pod has %s", key)
		}
	}
	if got := dig(pod, "securityContext", "seccompProfile", "type"); got != "RuntimeDefault" {
		t.Errorf("seccomp is %v", got)
	}
	capabilities := map[string][]any{"install-cni": {"DAC_OVERRIDE"}, "twilld": {"DAC_OVERRIDE", "NET_ADMIN", "NET_RAW"}}
	for _, c := range append(pod["initContainers"].([]any), pod["containers"].([]any)...) {
		checkContainer(t, c.(object), capabilities)
	}
	checkVolumes(t, pod)
}

// TestRightsForPolicies: what an agent's token may read once agents enforce policies. With Pods that is what people put into
// their env.
func TestRightsForPolicies(t *testing.T) {
	reads := func(group string, resources ...any) any {
		return object{"apiGroups": []any{group}, "resources": resources, "verbs": []any{"list", "watch"}}
	}
	for of, want := range map[string][]any{
		"network-policy":         {reads("", "namespaces", "pods"), reads("networking.k8s.io", "networkpolicies")},
		"cluster-network-policy": {reads("policy.networking.k8s.io", "clusternetworkpolicies")},
	} {
		objects := read(t, of+"/rbac.yaml")
		if got := objects["ClusterRole/twill-"+of]["rules"]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: the agent's rights are %v, want %v", of, got, want)
		}
		if len(objects) != 2 {
			t.Errorf("%s has %d objects, want a ClusterRole and its binding", of, len(objects))
		}
	}
}

// checkVolumes knows all that the pod has of the host, and that nothing that is mounted in it later reaches the host.
func checkVolumes(t *testing.T, pod object) {
	t.Helper()
	want := map[string]string{
		"/etc/cni/net.d": "DirectoryOrCreate", "/opt/cni/bin": "DirectoryOrCreate", "/proc/sys/net": "Directory", "/run/flannel": "DirectoryOrCreate",
		"/run/xtables.lock": "FileOrCreate", "/var/lib/cni/networks": "DirectoryOrCreate",
		"/var/lib/cni/results": "DirectoryOrCreate", "/var/lib/twill": "DirectoryOrCreate",
	}
	got := map[string]string{}
	for _, v := range pod["volumes"].([]any) {
		switch path := dig(v, "hostPath", "path"); {
		case path != nil:
			got[path.(string)] = dig(v, "hostPath", "type").(string)
		case dig(v, "configMap", "name") != "twill":
			t.Errorf("the pod has the volume %v: want the host's files and its own ConfigMap", v)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the pod has the host's %v, want %v", got, want)
	}
	for _, c := range append(pod["initContainers"].([]any), pod["containers"].([]any)...) {
		for _, m := range dig(c, "volumeMounts").([]any) {
			if dig(m, "mountPropagation") != nil {
				t.Errorf("the mount %v reaches the host", m)
			}
		}
	}
}

func checkContainer(t *testing.T, c object, capabilities map[string][]any) {
	name := c["name"].(string)
	add, known := capabilities[name]
	if !known {
		t.Errorf("container %s is not known here", name)
	}
	s := c["securityContext"].(object)
	got, _ := dig(s, "capabilities", "add").([]any)
	if !slices.Equal(got, add) || !reflect.DeepEqual(dig(s, "capabilities", "drop"), []any{"ALL"}) {
		t.Errorf("container %s has the capabilities %v", name, s["capabilities"])
	}
	if s["privileged"] != nil || s["allowPrivilegeEscalation"] != false || s["readOnlyRootFilesystem"] != true {
		t.Errorf("container %s has %v", name, s)
	}
	for _, resource := range []string{"cpu", "memory"} {
		if dig(c, "resources", "requests", resource) == nil {
			t.Errorf("container %s requests no %s", name, resource)
		}
	}
}

// read gives a manifest's objects by kind and name.
func read(t *testing.T, path string) map[string]object {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(data))
}

func parse(t *testing.T, manifest string) map[string]object {
	t.Helper()
	objects := map[string]object{}
	for _, document := range strings.Split(manifest, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(document+"\n"), &o); err != nil { // a text of many lines ends with its line
			t.Fatal(err)
		}
		objects[o["kind"].(string)+"/"+dig(o, "metadata", "name").(string)] = o
	}
	return objects
}

func dig(v any, path ...string) any {
	for _, key := range path {
		o, ok := v.(object)
		if !ok {
			return nil
		}
		v = o[key]
	}
	return v
}
