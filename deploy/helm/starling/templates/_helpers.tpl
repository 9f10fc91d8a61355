{{- define "starling.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- /* 52: names of pods get up to 11 characters more, and are labels. */ -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "starling.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "starling.labels" -}}
{{ include "starling.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "starling.secret" -}}
{{- .Values.gossipKey.existingSecret | default (printf "%s-gossip-key" (include "starling.fullname" .)) -}}
{{- end -}}

{{- /* With how many nodes the cluster began. */ -}}
{{- define "starling.expect" -}}
{{- if not (kindIs "invalid" .Values.expect) -}}
{{- int .Values.expect -}}
{{- else -}}
{{- $set := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "starling.fullname" .) | default dict -}}
{{- dig "metadata" "annotations" "starling/expect" (int .Values.replicas) $set -}}
{{- end -}}
{{- end -}}
