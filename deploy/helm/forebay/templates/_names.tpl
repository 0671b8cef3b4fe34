{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* The name of all objects: a DNS label of RFC 1035, short enough for suffixes. A release may have
     a name that is no such label, such as "1.a". */}}
{{- define "forebay.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) -}}
{{- $full = $full | replace "." "-" -}}
{{- if not (regexMatch "^[a-z]" $full) -}}{{- $full = printf "forebay-%s" $full -}}{{- end -}}
{{- $full | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of objects without a namespace. Two namespaces may each have a release of one name. */}}
{{- define "forebay.clusterName" -}}
{{- $name := printf "%s-%s" .Release.Namespace (include "forebay.fullname" .) -}}
{{- if gt (len $name) 63 -}}{{- $name = printf "%s-%s" (trunc 54 $name | trimSuffix "-") (sha256sum $name | trunc 8) -}}{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "forebay.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "forebay.labels" -}}
{{ include "forebay.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "forebay.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "forebay.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "forebay.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "forebay.volumeKind" -}}
{{- .Values.cache.volume | default (get (dict "sidecar" "emptyDir" "gateway" "claim" "daemonset" "hostPath") .Values.mode) -}}
{{- end -}}

{{/* Where clients of this release find it. */}}
{{- define "forebay.endpoint" -}}
{{- if eq .Values.mode "sidecar" -}}
http://127.0.0.1:9000
{{- else -}}
http://{{ include "forebay.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end -}}
{{- end -}}
