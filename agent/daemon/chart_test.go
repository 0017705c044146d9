package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestChartsFlags: what the chart gives the agents and the init container, in each of its renders, are flags.
func TestChartsFlags(t *testing.T) {
	paths, err := filepath.Glob("../../deploy/testdata/*.golden.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are the renders %v, %v", paths, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		type container struct{ Args []string }
		var d struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct{ InitContainers, Containers []container }
				}
			}
		}
		for document := range strings.SplitSeq(string(data), "\n---\n") {
			if strings.Contains(document, "\nkind: DaemonSet\n") {
				if err := yaml.Unmarshal([]byte(document), &d); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
			}
		}
		pod := d.Spec.Template.Spec
		containers := append(pod.InitContainers, pod.Containers...)
		if len(pod.InitContainers) == 0 || len(pod.Containers) != 1 {
			t.Fatalf("%s: %d containers, want the agent and its init containers", path, len(containers))
		}
		for _, c := range containers {
			if _, err := parseFlags(c.Args, noEnv, nil); err != nil {
				t.Errorf("%s: %q: %v", path, c.Args, err)
			}
		}
	}
}
