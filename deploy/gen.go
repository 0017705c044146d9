// Package deploy holds the manifests of Twill. deploy/base is the one source: Documentation/twill.yml and the Helm
// chart are made from it by `go generate ./deploy`, and a test says when they are out of date.
package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:generate go run ./gen

// sources are the files of the base, in the order in which they are applied.
var sources = []string{"namespace.yaml", "rbac.yaml", "policy.yaml", "config.yaml", "daemonset.yaml"}

// header says where a made file comes from.
const header = "# Made from deploy/base by `go generate ./deploy`; change it there.\n"

// holes are the texts of the base that the chart's values replace. All of them have to occur.
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
	// Agents read their config when they start: another one is another pod.
	{"  template:\n    metadata:\n", "  template:\n    metadata:\n      annotations:\n        checksum/config: " +
		"{{ include (print $.Template.BasePath \"/config.yaml\") . | sha256sum }}\n"},
	{sysctlMount, sysctlMount + ifTun("        - name: tun\n          mountPath: /dev/net/tun\n")},
	{sysctlVolume, sysctlVolume + ifTun("      - name: tun\n        hostPath:\n          path: /dev/net/tun\n          type: CharDevice\n")},
	{namespace, `{{ template "twill.namespace" . }}`}, // the last, because those before have it too
}

// namespace is where everything is. The chart has it in the namespace that helm is told, if it is told one; that one is
// not the chart's to make.
const (
	namespace = "kube-twill"
	helpers   = `{{- define "twill.namespace" -}}
{{- if eq .Release.Namespace "default" }}` + namespace + `{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}
`
)

// The last mount and the last volume of the base; what deploy/tun adds comes after them.
const (
	sysctlMount  = "          mountPath: /host/proc/sys/net\n"
	sysctlVolume = "          path: /proc/sys/net\n          type: Directory\n"
)

// ifTun is lines of the chart for those backends whose agent opens /dev/net/tun.
func ifTun(lines string) string {
	return "{{- if or (eq .Values.backend.Type \"udp\") (eq .Values.backend.Type \"wireguard\") }}\n" + lines + "{{- end }}\n"
}

// Values is the chart's values.yaml: with them the chart is the base.
const Values = `# The image of twilld, the CNI plugins and twillctl.
image: ghcr.io/twill-net/twill:v0.1.0
imagePullPolicy: IfNotPresent
# The networks of pods: those that the controller manager has as --cluster-cidr.
network: 10.244.0.0/16
enableIPv6: false
ipv6Network: fd00:10:244::/48
# The Backend of net-conf.json: {Type: vxlan, VNI: 1, DirectRouting: true}, {Type: host-gw}, …
backend:
  Type: vxlan
# How many nodes' agents may be replaced at once. Traffic goes on meanwhile.
maxUnavailable: 10%
# Further flags of twilld, such as --iface=eth1.
extraArgs: []
# Lease subnets without the controller manager's --allocate-node-cidrs; gives agents the right to patch their node.
selfLease: false
`

const chart = `apiVersion: v2
name: twill
description: An overlay network for Kubernetes that speaks flannel's formats
type: application
version: 0.1.0
appVersion: v0.1.0
kubeVersion: ">=1.30.0-0"
home: https://github.com/twill-net/twill
`

// Files are all made files by their path from the root of the source; dir is the folder deploy.
func Files(dir string) (map[string]string, error) {
	files := map[string]string{"deploy/chart/Chart.yaml": chart, "deploy/chart/values.yaml": Values, "deploy/chart/templates/_helpers.tpl": helpers}
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
			return nil, fmt.Errorf("the base has no %q any more: change the chart's values", h.text)
		}
	}
	files["Documentation/twill.yml"] = header + strings.Join(all, "---\n")
	return files, nil
}
