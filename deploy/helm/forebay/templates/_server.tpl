{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* For a chart of your own, with this one as its dependency:
       $forebay := dict "Values" .Values.forebay "Chart" .Subcharts.forebay.Chart "Release" .Release "Capabilities" .Capabilities
       initContainers: include "forebay.server" $forebay, include "forebay.warm" $forebay; volumes: include "forebay.volumes" $forebay */}}

{{/* The settings that the level restricted demands. They are in the container, because those of the
     pod may differ. */}}
{{- define "forebay.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  {{- toYaml .Values.seccompProfile | nindent 2 }}
{{- end -}}

{{/* The group owns the files of Secrets and the folders of volumes. */}}
{{- define "forebay.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  {{- toYaml .Values.seccompProfile | nindent 2 }}
{{- end -}}

{{/* The server: `forebay serve`. In a sidecar it is an init container that stays. */}}
{{- define "forebay.server" -}}
{{- $sidecar := eq .Values.mode "sidecar" -}}
{{- $emptyDir := eq (include "forebay.volumeKind" .) "emptyDir" -}}
- name: forebay
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if $sidecar }}
  restartPolicy: Always
  {{- end }}
  args: [serve]
  env:
    {{- include "forebay.env" . | nindent 4 }}
  ports:
    - name: s3
      containerPort: 9000
      {{- if and (eq .Values.mode "daemonset") (eq .Values.service.locality "hostPort") }}
      hostPort: 9000
      {{- end }}
    - name: admin
      containerPort: 9001
  # The only one of the three probes that delays later containers of the pod. It does not wait for
  # the origin.
  startupProbe:
    httpGet: {path: /startupz, port: admin}
    periodSeconds: 1
    failureThreshold: {{ ternary 60 300 $sidecar }}
  readinessProbe:
    httpGet: {path: /readyz, port: admin}
    periodSeconds: 5
  livenessProbe:
    httpGet: {path: /livez, port: admin}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- if and (not $sidecar) (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}
  # Until every proxy of the cluster has taken it out of the Service; the drain of 25 s comes after.
  lifecycle:
    preStop:
      sleep: {seconds: 5}
  {{- end }}
  {{- $resources := deepCopy .Values.resources }}
  {{- if $emptyDir }}
  {{- $_ := set $resources "requests" (mergeOverwrite (deepCopy ($resources.requests | default dict)) (dict "ephemeral-storage" .Values.cache.size)) }}
  {{- end }}
  resources:
    {{- toYaml $resources | nindent 4 }}
  securityContext:
    {{- include "forebay.securityContext" . | nindent 4 }}
  volumeMounts:
    - name: forebay-cache
      mountPath: /cache
    {{- if .Values.config }}
    - name: forebay-config
      mountPath: /etc/forebay
      readOnly: true
    {{- end }}
    {{- if .Values.origin.caConfigMap }}
    - name: forebay-ca
      mountPath: /etc/forebay-ca
      readOnly: true
    {{- end }}
    {{- if .Values.origin.proxyAuthSecret }}
    - name: forebay-proxy
      mountPath: /secrets/proxy
      readOnly: true
    {{- end }}
    {{- if and .Values.credentials.existingSecret (not $sidecar) }}
    - name: forebay-credentials
      mountPath: /secrets/credentials
      readOnly: true
    {{- end }}
    {{- if and .Values.auth.existingSecret (not $sidecar) }}
    - name: forebay-keys
      mountPath: /secrets/keys
      readOnly: true
    {{- end }}
    {{- if and .Values.admin.existingSecret (not $sidecar) }}
    - name: forebay-admin
      mountPath: /secrets/admin
      readOnly: true
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "forebay.env" -}}
{{- $sidecar := eq .Values.mode "sidecar" -}}
- name: FOREBAY_LISTEN
  value: {{ ternary "127.0.0.1:9000" (printf "%s:9000" .Values.bindAddress) $sidecar | quote }}
{{- if not $sidecar }}
- name: FOREBAY_LISTEN_PLAINTEXT
  value: network
{{- end }}
# Not loopback: the kubelet and Prometheus ask at the pod's address. Pages that show keys and
# actions that change the cache stay on loopback.
- name: FOREBAY_ADMIN_LISTEN
  value: {{ printf "%s:9001" .Values.bindAddress | quote }}
{{- with .Values.origin.endpoint }}
- name: FOREBAY_ORIGIN_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.origin.region }}
- name: FOREBAY_ORIGIN_REGION
  value: {{ . | quote }}
{{- end }}
{{- if .Values.origin.caConfigMap }}
- name: FOREBAY_ORIGIN_CA_FILE
  value: /etc/forebay-ca/ca.pem
{{- end }}
{{- if .Values.origin.proxyAuthSecret }}
- name: FOREBAY_ORIGIN_PROXY_AUTH_FILE
  value: /secrets/proxy/userpass
{{- end }}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: NODE_NAME
  valueFrom:
    fieldRef: {fieldPath: spec.nodeName}
- name: FOREBAY_CACHE_DIR
  value: /cache
- name: FOREBAY_CACHE_SIZE
  {{- if eq (include "forebay.volumeKind" .) "emptyDir" }}
  valueFrom:
    resourceFieldRef: {resource: requests.ephemeral-storage}
  {{- else }}
  value: {{ printf "%sB" .Values.cache.size }}
  {{- end }}
{{- if $sidecar }}
# Its clients have ended before it is stopped.
- name: FOREBAY_SHUTDOWN_GRACE
  value: 5s
{{- end }}
{{- if .Values.credentials.existingSecret }}
{{- if $sidecar }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef: {name: {{ .Values.credentials.existingSecret }}, key: access_key_id}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef: {name: {{ .Values.credentials.existingSecret }}, key: secret_access_key}
{{- if .Values.credentials.sessionToken }}
- name: AWS_SESSION_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .Values.credentials.existingSecret }}, key: session_token}
{{- end }}
{{- else }}
- name: FOREBAY_CREDENTIALS_ACCESS_KEY_FILE
  value: /secrets/credentials/access_key_id
- name: FOREBAY_CREDENTIALS_SECRET_KEY_FILE
  value: /secrets/credentials/secret_access_key
{{- if .Values.credentials.sessionToken }}
- name: FOREBAY_CREDENTIALS_SESSION_TOKEN_FILE
  value: /secrets/credentials/session_token
{{- end }}
{{- end }}
{{- end }}
{{- if not $sidecar }}
- name: FOREBAY_AUTH_MODE
  value: {{ .Values.auth.mode }}
{{- if .Values.auth.allowOpenNetwork }}
- name: FOREBAY_AUTH_ALLOW_OPEN_NETWORK
  value: "true"
{{- end }}
{{- if .Values.auth.existingSecret }}
- name: FOREBAY_AUTH_KEYS_FILE
  value: /secrets/keys/keys.yaml
{{- end }}
{{- end }}
{{- if and .Values.admin.existingSecret (not $sidecar) }}
- name: FOREBAY_ADMIN_TOKEN_FILE
  value: /secrets/admin/token
- name: FOREBAY_ADMIN_ALLOWED_HOSTS
  {{- if and (eq .Values.mode "gateway") .Values.gateway.balancer.enabled }}
  value: $(POD_NAME).{{ include "forebay.fullname" . }}-nodes.{{ .Release.Namespace }}.svc
  {{- else }}
  value: {{ include "forebay.endpoint" . | trimPrefix "http://" }}
  {{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Fetches before the first container starts. Kubernetes adds its resource requests to those of
     the sidecar, so they are small. */}}
{{- define "forebay.warm" -}}
- name: warm
  image: {{ include "forebay.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - warm
    - --wait
    - --min
    - {{ .Values.sidecar.warm.min | quote }}
    {{- with .Values.sidecar.warm.rate }}
    - --rate
    - {{ . | quote }}
    {{- end }}
    {{- range .Values.sidecar.warm.uris }}
    - {{ . | quote }}
    {{- end }}
  env:
    - name: FOREBAY_ADMIN
      value: http://127.0.0.1:9001
  resources:
    requests: {cpu: 50m, memory: 64Mi}
    limits: {memory: 64Mi}
  securityContext:
    {{- include "forebay.securityContext" . | nindent 4 }}
{{- end -}}

{{- define "forebay.volumes" -}}
{{- $sidecar := eq .Values.mode "sidecar" -}}
{{- $kind := include "forebay.volumeKind" . -}}
{{- if eq $kind "emptyDir" }}
- name: forebay-cache
  emptyDir: {sizeLimit: {{ .Values.cache.size }}}
{{- else if eq $kind "ephemeral" }}
- name: forebay-cache
  ephemeral:
    volumeClaimTemplate:
      spec:
        {{- include "forebay.claim" . | nindent 8 }}
{{- else if eq $kind "hostPath" }}
- name: forebay-cache
  hostPath: {path: {{ .Values.cache.hostPath.path | default (printf "/var/cache/%s" (include "forebay.clusterName" .)) }}, type: {{ ternary "DirectoryOrCreate" "Directory" .Values.cache.hostPath.prepare }}}
{{- end }}
{{- if .Values.config }}
- name: forebay-config
  configMap: {name: {{ include "forebay.fullname" . }}}
{{- end }}
{{- with .Values.origin.caConfigMap }}
- name: forebay-ca
  configMap: {name: {{ . }}}
{{- end }}
{{- with .Values.origin.proxyAuthSecret }}
- name: forebay-proxy
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if and .Values.credentials.existingSecret (not $sidecar) }}
- name: forebay-credentials
  secret: {secretName: {{ .Values.credentials.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- if and .Values.auth.existingSecret (not $sidecar) }}
- name: forebay-keys
  secret: {secretName: {{ .Values.auth.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- if and .Values.admin.existingSecret (not $sidecar) }}
- name: forebay-admin
  secret: {secretName: {{ .Values.admin.existingSecret }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "forebay.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.cache.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.cache.size }}
{{- end -}}

{{/* The output of `forebay env` for this endpoint. */}}
{{- define "forebay.clientEnv" -}}
{{- $url := include "forebay.endpoint" . -}}
{{- $host := trimPrefix "http://" $url -}}
AWS_ENDPOINT_URL_S3: {{ $url }}
S3_ENDPOINT_URL: {{ $url }}
S3_ENDPOINT: {{ $host }}
S3_USE_HTTPS: "0"
S3_VERIFY_SSL: "0"
FSSPEC_S3_ENDPOINT_URL: {{ $url }}
DUCKDB_S3_ENDPOINT: {{ $host }}
DUCKDB_S3_USE_SSL: "false"
RCLONE_S3_ENDPOINT: {{ $url }}
AWS_ALLOW_HTTP: "true"
RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING: "0"
AWS_S3_ENDPOINT: {{ $host }}
AWS_HTTPS: "NO"
AWS_VIRTUAL_HOSTING: "FALSE"
GDAL_DISABLE_READDIR_ON_OPEN: EMPTY_DIR
NO_PROXY: {{ regexReplaceAll ":[0-9]+$" $host "" }}
no_proxy: {{ regexReplaceAll ":[0-9]+$" $host "" }}
{{- if .Values.clientEnv.global }}
AWS_ENDPOINT_URL: {{ $url }}
{{- end }}
{{- if .Values.clientEnv.anyKeys }}
AWS_ACCESS_KEY_ID: any
AWS_SECRET_ACCESS_KEY: any
{{- end }}
{{- end -}}
