{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* Labels that differ from those of the nodes. Otherwise the Service, budget and policy of the
     nodes would also select balancers. */}}
{{- define "forebay.balancerSelectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-balancer
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "forebay.balancerMetadata" -}}
name: {{ include "forebay.fullname" . }}-balancer
namespace: {{ .Release.Namespace }}
labels:
  {{- include "forebay.balancerSelectorLabels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
  {{- with .Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* deploy/haproxy/haproxy.cfg without its comments, with a line for each node that may be added.
     Each line has the node's own name, so a node keeps its place whatever its address. With lines
     by address (server-template) the places would differ between balancers. */}}
{{- define "forebay.haproxy" -}}
{{- $nodes := printf "%s-nodes.%s.svc.%s" (include "forebay.fullname" .) .Release.Namespace .Values.gateway.balancer.clusterDomain -}}
{{- $lines := "    default-server resolvers cluster init-addr none resolve-prefer PREFER\n" | replace "PREFER" (ternary "ipv6" "ipv4" (hasPrefix "[" .Values.bindAddress)) -}}
{{- range $i := until (int .Values.gateway.balancer.maxNodes) -}}
{{- $lines = printf "%s    server %s-%d %s-%d.%s:9000 id %d\n" $lines (include "forebay.fullname" $) $i (include "forebay.fullname" $) $i $nodes (add1 $i) -}}
{{- end -}}
{{- $config := .Files.Get "files/haproxy.cfg" -}}
{{- $config = mustRegexReplaceAllLiteral "(?s)    # nodes begin.*# nodes end\n" $config $lines -}}
{{- $config = mustRegexReplaceAll "(?m)^ *#.*\n" $config "" -}}
{{- $config = replace "bind :" (printf "bind %s:" .Values.bindAddress) $config -}}
{{- range concat (list) ((.Values.config.s3 | default dict).domains | default list) -}}
{{- $config = replace "(localhost|" (printf "(localhost|%s|" (lower . | regexQuoteMeta)) $config -}}
{{- end -}}
{{- range .Values.gateway.balancer.wholeBuckets -}}
{{- $config = replace "acl whole_bucket var(txn.bucket) -m str" (printf "acl whole_bucket var(txn.bucket) -m str %s" .) $config -}}
{{- end -}}
{{- $config | trim }}

resolvers cluster
    parse-resolv-conf
    accepted_payload_size 4096
    timeout resolve 1s
    timeout retry 1s
    hold valid 10s
    hold nx 5s
    hold other 30s
    hold refused 30s
    hold timeout 30s
{{- end -}}
