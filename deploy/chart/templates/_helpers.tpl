{{- define "twill.namespace" -}}
{{- if eq .Release.Namespace "default" }}kube-twill{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}
