{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* A pod of the gateway or the daemonset, from its metadata on. */}}
{{- define "forebay.pod" -}}
metadata:
  labels:
    {{- include "forebay.selectorLabels" . | nindent 4 }}
    {{- with .Values.commonLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or .Values.podAnnotations .Values.restartOnConfigChange }}
  annotations:
    {{- if .Values.restartOnConfigChange }}
    checksum/config: {{ toYaml .Values.config | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "forebay.serviceAccountName" . }}
  automountServiceAccountToken: false
  # A Service called forebay would put FOREBAY_PORT and the like into the environment.
  enableServiceLinks: false
  {{- with .Values.priorityClassName | default (ternary (include "forebay.clusterName" .) "" (and (eq .Values.mode "daemonset") .Values.priorityClass.create)) }}
  priorityClassName: {{ . }}
  {{- end }}
  # 5 s until no new connection comes, up to 25 s for requests in flight, and some to save the
  # state.
  terminationGracePeriodSeconds: 60
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "forebay.podSecurityContext" . | nindent 4 }}
  {{- $prepare := and (eq (include "forebay.volumeKind" .) "hostPath") .Values.cache.hostPath.prepare }}
  {{- if or $prepare .Values.cache.wipeOlder }}
  initContainers:
    {{- if $prepare }}
    # The kubelet creates the folder for root, and this container makes 65532 its owner. Later
    # starts find it so and change nothing.
    - name: prepare
      image: {{ include "forebay.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [prepare, --owner, "65532:65532", /cache]
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 64Mi}
      securityContext:
        runAsNonRoot: false
        runAsUser: 0
        runAsGroup: 0
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          add: [CHOWN]
        seccompProfile:
          {{- toYaml .Values.seccompProfile | nindent 10 }}
      volumeMounts:
        - name: forebay-cache
          mountPath: /cache
    {{- end }}
    {{- if .Values.cache.wipeOlder }}
    # As the server's own user: who has prepared the folder may not look into it.
    - name: wipe-older
      image: {{ include "forebay.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [prepare, --wipe-older, /cache]
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 64Mi}
      securityContext:
        {{- include "forebay.securityContext" . | nindent 8 }}
      volumeMounts:
        - name: forebay-cache
          mountPath: /cache
    {{- end }}
  {{- end }}
  containers:
    {{- include "forebay.server" . | nindent 4 }}
    {{- if .Values.nodeFeatures.dataSets }}
    {{- include "forebay.nodeFeatures" . | nindent 4 }}
    {{- end }}
  {{- $volumes := include "forebay.volumes" . | trim }}
  {{- if or $volumes .Values.nodeFeatures.dataSets }}
  volumes:
    {{- with $volumes }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- if .Values.nodeFeatures.dataSets }}
    - name: node-features
      hostPath: {path: {{ .Values.nodeFeatures.path | quote }}, type: DirectoryOrCreate}
    {{- end }}
  {{- end }}
  {{- if eq .Values.mode "gateway" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "forebay.selectorLabels" . | nindent 10 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* It never ends by itself, because a failure of labels must not take a cache out of the Service.
     */}}
{{- define "forebay.nodeFeatures" -}}
{{- $root := eq (int .Values.nodeFeatures.runAsUser) 0 -}}
- name: node-features
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - warm
    - --check
    - --node-features
    - /features.d/{{ include "forebay.clusterName" . }}
    - --min
    - {{ .Values.nodeFeatures.min | quote }}
    - --every
    - {{ .Values.nodeFeatures.every | quote }}
    {{- range $set := .Values.nodeFeatures.dataSets }}
    {{- range $set.uris }}
    - {{ printf "%s=%s" $set.name . | quote }}
    {{- end }}
    {{- end }}
  env:
    - name: FOREBAY_ADMIN
      value: http://127.0.0.1:9001
    {{- if .Values.admin.existingSecret }}
    - name: FOREBAY_ADMIN_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ .Values.admin.existingSecret }}, key: token}
    {{- end }}
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 64Mi}
  securityContext:
    {{- if $root }}
    runAsNonRoot: false
    runAsUser: 0
    runAsGroup: 0
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: [ALL]
    seccompProfile:
      {{- toYaml .Values.seccompProfile | nindent 6 }}
    {{- else }}
    {{- include "forebay.securityContext" . | nindent 4 }}
    {{- end }}
  volumeMounts:
    - name: node-features
      mountPath: /features.d
{{- end -}}

{{- define "forebay.metadata" -}}
name: {{ include "forebay.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "forebay.labels" . | nindent 2 }}
{{- end -}}
