// Package deploy holds the manifests of Twill. deploy/base is the source of Documentation/twill.yml and of the chart's
// rights and policies: `go generate ./deploy` makes them, and a test fails when they are out of date. The chart's other
// templates are written by hand; a test holds that with its own values the chart is the base.
package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:generate go run ./gen

// sources are the files of the base, in the order in which kubectl applies them.
var sources = []string{"namespace.yaml", "rbac.yaml", "policy.yaml", "config.yaml", "daemonset.yaml"}

// header is the first line of a generated file.
const header = "# Generated from deploy/base by `go generate ./deploy`; change it there.\n"

// namespace is the namespace of the base. The chart uses helm's --namespace instead if it is set, and does not create
// that one.
const namespace = "kube-twill"

// Files returns the generated files by their path from the root of the source. dir is the folder deploy.
func Files(dir string) (map[string]string, error) {
	files := map[string]string{}
	var all []string
	for _, name := range sources {
		data, err := os.ReadFile(filepath.Join(dir, "base", name))
		if err != nil {
			return nil, err
		}
		all = append(all, string(data))
	}
	files["Documentation/twill.yml"] = header + strings.Join(all, "---\n")
	for _, t := range []struct{ from, name, to, value string }{
		{"base", "rbac.yaml", "rbac.yaml", ""},
		{"base", "policy.yaml", "policy.yaml", ""},
		{"self-lease", "rbac.yaml", "self-lease-rbac.yaml", "selfLease"},
		{"network-policy", "rbac.yaml", "network-policy-rbac.yaml", "networkPolicy"},
		{"cluster-network-policy", "rbac.yaml", "cluster-network-policy-rbac.yaml", "clusterNetworkPolicy"},
	} {
		data, err := os.ReadFile(filepath.Join(dir, t.from, t.name))
		if err != nil {
			return nil, err
		}
		text, err := template(string(data))
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", t.from, t.name, err)
		}
		if t.value != "" {
			text = "{{- if .Values." + t.value + " }}\n" + text + "{{- end }}\n"
		}
		files["deploy/chart/templates/"+t.to] = text
	}
	return files, nil
}

// template makes a template of the chart from a file whose objects have no labels and annotations.
func template(text string) (string, error) {
	const metadata = "\nmetadata:\n"
	documents := strings.Split(text, "---\n")
	for i, d := range documents {
		if strings.Count(d, metadata) != 1 || strings.Contains(d, "\n  labels:") || strings.Contains(d, "\n  annotations:") {
			return "", fmt.Errorf("object %d: want metadata without labels and annotations, the chart adds its own", i+1)
		}
		values := ".Values.rbac"
		if strings.Contains(d, "\nkind: ServiceAccount\n") {
			values = ".Values.serviceAccount"
		}
		documents[i] = strings.Replace(d, metadata, "\nmetadata:\n"+
			`  {{- with include "twill.metadata" (list . `+values+` dict) | trim }}{{ . | nindent 2 }}{{ end }}`+"\n", 1)
	}
	text = strings.ReplaceAll(strings.Join(documents, "---\n"), namespace, `{{ template "twill.namespace" . }}`)
	return strings.ReplaceAll(text, "flannel.alpha.coreos.com/", "{{ .Values.annotationPrefix }}/"), nil
}
