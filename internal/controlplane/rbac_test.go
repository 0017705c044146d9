package controlplane

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

func TestAgentRulesAreTheManifests(t *testing.T) {
	data, err := os.ReadFile("../../deploy/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		var role struct {
			Kind  string
			Rules []Rule
		}
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind != "ClusterRole" {
			continue
		}
		if !reflect.DeepEqual(role.Rules, agentRules) {
			t.Errorf("the manifest's rules are %v, the lab's %v: want them alike", role.Rules, agentRules)
		}
		return
	}
	t.Error("deploy/base/rbac.yaml has no ClusterRole")
}
