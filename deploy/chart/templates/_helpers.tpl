{{- define "ebbtide.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "ebbtide.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "ebbtide.labels" -}}
{{ include "ebbtide.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "ebbtide.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "ebbtide.fullname" .) }}
{{- end -}}

{{/* Not empty in a dry run: then no cluster-autoscaler is beside ebbtide, and nothing is kept from others. */}}
{{- define "ebbtide.dryRun" -}}
{{- if eq (get .Values.extraArgs "dry-run" | toString) "true" }}true{{ end -}}
{{- end -}}

{{/* Not empty if cluster-autoscaler is in ebbtide's pod. */}}
{{- define "ebbtide.withAutoscaler" -}}
{{- if and (eq .Values.mode "sidecar") (not (include "ebbtide.dryRun" .)) }}true{{ end -}}
{{- end -}}

{{- define "ebbtide.serverSecret" -}}
{{ .Values.tls.serverSecret | default (printf "%s-tls" (include "ebbtide.fullname" .)) }}
{{- end -}}

{{- define "ebbtide.clientSecret" -}}
{{ .Values.tls.clientSecret | default (printf "%s-client-tls" (include "ebbtide.fullname" .)) }}
{{- end -}}

{{- define "ebbtide.image" -}}
{{- $repository := required "image.repository has to be given: where your image of ebbtide is, as in --set image.repository=REGISTRY/ebbtide" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}
{{- end -}}

{{/* Flags from a map: a value, or a list of values for a flag that is repeatable. Whole numbers without an exponent. */}}
{{- define "ebbtide.flags" -}}
{{- range $flag, $value := . }}
{{- range (kindIs "slice" $value | ternary $value (list $value)) }}
- {{ printf "--%s=%v" $flag (ternary (int64 .) . (and (kindIs "float64" .) (eq (floor .) (float64 .)))) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A binding of a role to ebbtide's service account: (dict "root" $ "name" NAME "kind" KIND "namespace" NAMESPACE). */}}
{{- define "ebbtide.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "ebbtide.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "ebbtide.serviceAccountName" .root }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
