{{- define "tiexec.selector" -}}
app.kubernetes.io/name: tiexec
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tiexec.labels" -}}
{{ include "tiexec.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
