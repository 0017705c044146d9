{{- define "twill.namespace" -}}
{{- if eq .Release.Namespace "default" }}kube-twill{{ else }}{{ .Release.Namespace }}{{ end }}
{{- end }}

{{- define "twill.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}{{ end }}
{{- end }}

{{/* Labels and annotations: of all objects, of this one, and labels that cannot be altered. */}}
{{- define "twill.metadata" -}}
{{- $values := (index . 0).Values }}
{{- $own := index . 1 | default dict }}
{{- with mergeOverwrite (dict) ($values.commonLabels | default dict) ($own.labels | default dict) (index . 2) }}
labels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with mergeOverwrite (dict) ($values.commonAnnotations | default dict) ($own.annotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
