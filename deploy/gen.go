// Package deploy holds the manifests of Twill. deploy/base is their only source: `go generate ./deploy` makes
// Documentation/twill.yml and the Helm chart from it, and a test fails when they are out of date.
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

// holes are the texts of the base that the chart's values replace. Each must occur.
var holes = []struct{ text, value string }{
	{"ghcr.io/twill-net/twill:v0.1.0", "{{ .Values.image }}"},
	{"imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ .Values.imagePullPolicy }}"},
	{`"Network": "10.244.0.0/16"`, `"Network": {{ .Values.network | quote }}`},
	{`"EnableIPv6": false`, `"EnableIPv6": {{ .Values.enableIPv6 }}`},
	{`"IPv6Network": "fd00:10:244::/48"`, `"IPv6Network": {{ .Values.ipv6Network | quote }}`},
	{`{"Type":"vxlan"}`, "{{ .Values.backend | toJson }}"},
	{"maxUnavailable: 10%", "maxUnavailable: {{ .Values.maxUnavailable }}"},
	{"        - --healthz-port=10267\n", "        - --healthz-port=10267\n" +
		"{{- if .Values.selfLease }}\n        - --kube-lease-namespace=kube-twill\n{{- end }}\n" +
		"{{- range .Values.extraArgs }}\n        - {{ . | quote }}\n{{- end }}\n"},
	// Agents read their config at start, so a new config must replace the pods.
	{"  template:\n    metadata:\n", "  template:\n    metadata:\n      annotations:\n        checksum/config: " +
		"{{ include (print $.Template.BasePath \"/config.yaml\") . | sha256sum }}\n"},
	{sysctlMount, sysctlMount + ifTun("        - name: tun\n          mountPath: /dev/net/tun\n")},
	{
		sysctlVolume,
		sysctlVolume + ifTun(
			"      - name: tun\n        hostPath:\n          path: /dev/net/tun\n          type: CharDevice\n",
		),
	},
	{namespace, `{{ template "twill.namespace" . }}`}, // last, because texts before contain it too
}

// namespace is the namespace of the base. The chart uses helm's --namespace instead if it is set, and does not create
// that one.
const (
	namespace = "kube-twill"
	helpers   = `{{- define "twill.namespace" -}}
{{- if eq .Release.Namespace "default" }}` + namespace + `{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}
`
)

// sysctlMount and sysctlVolume are the last mount and volume of the base; the chart adds /dev/net/tun after them.
const (
	sysctlMount  = "          mountPath: /host/proc/sys/net\n"
	sysctlVolume = "          path: /proc/sys/net\n          type: Directory\n"
)

// ifTun wraps lines of the chart that only backends with /dev/net/tun need.
func ifTun(lines string) string {
	return "{{- if or (eq .Values.backend.Type \"udp\") (eq .Values.backend.Type \"wireguard\") }}\n" + lines + "{{- end }}\n"
}

// Values is the chart's values.yaml. With these defaults the chart renders the base.
const Values = `# The image with twilld, the CNI plugins and twillctl.
image: ghcr.io/twill-net/twill:v0.1.0
imagePullPolicy: IfNotPresent
# The pods' networks. They must match the controller manager's --cluster-cidr.
network: 10.244.0.0/16
enableIPv6: false
ipv6Network: fd00:10:244::/48
# The Backend of net-conf.json: {Type: vxlan, VNI: 1, DirectRouting: true}, {Type: host-gw}, …
backend:
  Type: vxlan
# How many nodes may be updated at a time. Pods keep their network meanwhile.
maxUnavailable: 10%
# Additional flags of twilld, such as --iface=eth1.
extraArgs: []
# Lease subnets without the controller manager's --allocate-node-cidrs. Agents then may patch their nodes.
selfLease: false
`

const chart = `apiVersion: v2
name: twill
description: An overlay network for Kubernetes that uses flannel's formats
type: application
version: 0.1.0
appVersion: v0.1.0
kubeVersion: ">=1.30.0-0"
home: https://github.com/twill-net/twill
`

// Files returns the generated files by their path from the root of the source. dir is the folder deploy.
func Files(dir string) (map[string]string, error) {
	files := map[string]string{
		"deploy/chart/Chart.yaml":             chart,
		"deploy/chart/values.yaml":            Values,
		"deploy/chart/templates/_helpers.tpl": helpers,
	}
	var all []string
	found := map[string]bool{}
	for _, name := range sources {
		data, err := os.ReadFile(filepath.Join(dir, "base", name))
		if err != nil {
			return nil, err
		}
		text := string(data)
		all = append(all, text)
		for _, h := range holes {
			found[h.text] = found[h.text] || strings.Contains(text, h.text)
			text = strings.ReplaceAll(text, h.text, h.value)
		}
		if name == "namespace.yaml" {
			text = "{{- if eq .Release.Namespace \"default\" }}\n" + text + "{{- end }}\n"
		}
		files["deploy/chart/templates/"+name] = text
	}
	for _, name := range []string{"rbac.yaml", "policy.yaml"} {
		data, err := os.ReadFile(filepath.Join(dir, "self-lease", name))
		if err != nil {
			return nil, err
		}
		files["deploy/chart/templates/self-lease-"+name] = "{{- if .Values.selfLease }}\n" +
			strings.ReplaceAll(string(data), namespace, `{{ template "twill.namespace" . }}`) + "{{- end }}\n"
	}
	for _, h := range holes {
		if !found[h.text] {
			return nil, fmt.Errorf("the base does not contain %q: change the chart's values", h.text)
		}
	}
	files["Documentation/twill.yml"] = header + strings.Join(all, "---\n")
	return files, nil
}
