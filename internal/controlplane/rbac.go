package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const rbacGroup = "rbac.authorization.k8s.io"

// agentRules are all rights of a Twill agent, as its manifest (deploy/base/rbac.yaml) gives them. Tests run
// with exactly these, so that a call that needs more fails here and not in somebody's cluster.
var agentRules = []Rule{
	{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
	{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
	{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
}

// Rule is one rule of a ClusterRole.
type Rule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	Verbs     []string `json:"verbs"`
}

// object is any RBAC object; each kind uses its own part of the fields.
type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Rules      []Rule            `json:"rules,omitempty"`
	RoleRef    *reference        `json:"roleRef,omitempty"`
	Subjects   []reference       `json:"subjects,omitempty"`
}

type reference struct {
	APIGroup  string `json:"apiGroup,omitempty"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// ApplyAgentRBAC makes the ClusterRole twill and binds it to the given users, and to nobody else. A name of the
// form system:serviceaccount:NAMESPACE:NAME is a service account. Doing it again changes nothing.
func (s *APIServer) ApplyAgentRBAC(ctx context.Context, users ...string) error {
	return s.ApplyRole(ctx, "twill", agentRules, users...)
}

// ApplyRole does the same for a role of any name.
func (s *APIServer) ApplyRole(ctx context.Context, name string, rules []Rule, users ...string) error {
	if err := s.apply(ctx, "clusterroles", name, object{Kind: "ClusterRole", Rules: rules}); err != nil {
		return err
	}
	binding := object{
		Kind:    "ClusterRoleBinding",
		RoleRef: &reference{APIGroup: rbacGroup, Kind: "ClusterRole", Name: name},
	}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects, subject(user))
	}
	return s.apply(ctx, "clusterrolebindings", name, binding)
}

func subject(user string) reference {
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		namespace, name, _ := strings.Cut(rest, ":")
		return reference{Kind: "ServiceAccount", Namespace: namespace, Name: name}
	}
	return reference{APIGroup: rbacGroup, Kind: "User", Name: user}
}

// apply is a server-side apply, which creates what is missing.
func (s *APIServer) apply(ctx context.Context, resource, name string, o object) error {
	o.APIVersion = rbacGroup + "/v1"
	o.Metadata = map[string]string{"name": name}
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode %s: %w", resource, err)
	}
	_, err = s.do(ctx, request{
		method:      http.MethodPatch,
		path:        "/apis/" + rbacGroup + "/v1/" + resource + "/" + name + "?fieldManager=twill-lab&force=true",
		contentType: "application/apply-patch+yaml", // of which JSON is a part
		body:        body,
	})
	if err != nil {
		return fmt.Errorf("apply %s: %w", resource, err)
	}
	return nil
}
