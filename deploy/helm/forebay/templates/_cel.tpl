{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* A value as an expression of CEL. Its maps and lists hold values of one type, hence dyn(). */}}
{{- define "forebay.cel" -}}
{{- if kindIs "map" . -}}
{ {{- include "forebay.celPairs" . -}} }
{{- else if kindIs "slice" . -}}
[{{- range $i, $value := . -}}{{- if $i }}, {{ end -}}dyn({{ include "forebay.cel" $value }}){{- end -}}]
{{- else if kindIs "string" . -}}
{{ toJson . }}
{{- else if kindIs "bool" . -}}
{{ . }}
{{- else -}}
{{ int64 . }}
{{- end -}}
{{- end -}}

{{- define "forebay.celPairs" -}}
{{- $first := true -}}
{{- range $key, $value := . -}}
{{- if not $first }}, {{ end -}}{{ toJson $key }}: dyn({{ include "forebay.cel" $value }})
{{- $first = false -}}
{{- end -}}
{{- end -}}

{{/* The configuration of an injected sidecar is an annotation of its pod, because the release's
     ConfigMap exists in no other namespace. */}}
{{- define "forebay.injectedConfig" -}}
name: forebay-config
downwardAPI:
  items:
    - path: forebay.yaml
      fieldRef: {fieldPath: "metadata.annotations['forebay.io/config']"}
{{- end -}}

{{/* The changes of a pod by injection, as one list of JSON patches. The API server and Kyverno get
     the same list. The sidecar comes first, so that it serves all other containers. Then come warm,
     if the pod asks for it, the configuration, the volumes, and the clients' variables. A container
     keeps variables that it already has.

     A claim belongs to root unless the pod has an fsGroup. The patch sets none, because an fsGroup
     also changes the files of the pod's other volumes. Without one the expression fails, and
     failurePolicy decides. CEL has no function for that, so a missing key carries the reason. */}}
{{- define "forebay.patches" -}}
{{- $server := index (include "forebay.server" . | fromYamlArray) 0 -}}
{{- $volumes := include "forebay.volumes" . | fromYamlArray -}}
{{- $warm := index (include "forebay.warm" . | fromYamlArray) 0 -}}
{{- $args := list "warm" "--wait" "--min" .Values.sidecar.warm.min -}}
{{- with .Values.sidecar.warm.rate }}{{ $args = concat $args (list "--rate" .) }}{{ end -}}
{{- if eq (include "forebay.volumeKind" .) "ephemeral" }}
{"add": []}[has(object.spec.securityContext) && has(object.spec.securityContext.fsGroup) ? "add" :
  "cache.volume ephemeral needs a pod with securityContext.fsGroup: without it the sidecar cannot write to the claim"]
+ {{ end -}}
(has(object.spec.initContainers) ? [] : [JSONPatch{op: "add", path: "/spec/initContainers", value: []}])
+ (has(object.metadata.annotations) && "forebay.io/warm" in object.metadata.annotations ? [
  JSONPatch{op: "add", path: "/spec/initContainers/0", value:
    { {{- include "forebay.celPairs" (omit $warm "args") }}, "args": dyn({{ include "forebay.celStrings" $args }} + object.metadata.annotations["forebay.io/warm"].split(" "))} }
  ] : [])
+ [
  JSONPatch{op: "add", path: "/spec/initContainers/0", value:
    {{ include "forebay.cel" $server }} },
  JSONPatch{op: "add", path: "/metadata/labels/forebay.io~1sidecar", value: "true"}
  ]
{{- with .Values.config }}
+ (has(object.metadata.annotations) ? [] : [JSONPatch{op: "add", path: "/metadata/annotations", value: {}}])
+ [JSONPatch{op: "add", path: "/metadata/annotations/forebay.io~1config", value: {{ toYaml . | toJson }}}]
{{- end }}
+ (has(object.spec.volumes) ? [] : [JSONPatch{op: "add", path: "/spec/volumes", value: []}])
+ [
  {{- range $i, $volume := $volumes }}
  {{- if eq $volume.name "forebay-config" }}{{ $volume = include "forebay.injectedConfig" $ | fromYaml }}{{ end }}
  {{- if $i }},{{ end }}
  JSONPatch{op: "add", path: "/spec/volumes/-", value: {{ include "forebay.cel" $volume }} }
  {{- end }}
  ]
+ variables.places.filter(i, !has(object.spec.containers[i].env)).map(i,
  JSONPatch{op: "add", path: "/spec/containers/" + string(i) + "/env", value: []})
{{- range $name, $value := include "forebay.clientEnv" . | fromYaml }}
+ variables.places.filter(i, !(has(object.spec.containers[i].env) && object.spec.containers[i].env.exists(e, e.name == {{ toJson $name }}))).map(i,
  JSONPatch{op: "add", path: "/spec/containers/" + string(i) + "/env/-", value: {"name": {{ toJson $name }}, "value": {{ toJson $value }}} })
{{- end }}
{{- end -}}

{{- define "forebay.celStrings" -}}
[{{- range $i, $value := . -}}{{- if $i }}, {{ end -}}{{ toJson $value }}{{- end -}}]
{{- end -}}

{{/* The body that both kinds of policy have in common. */}}
{{- define "forebay.injection" -}}
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
  objectSelector:
    matchLabels:
      forebay.io/inject: "true"
  {{- with .Values.injection.namespaceSelector }}
  namespaceSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
matchConditions:
  - name: has-none
    expression: '!(has(object.spec.initContainers) && object.spec.initContainers.exists(c, c.name == "forebay"))'
failurePolicy: {{ .Values.injection.failurePolicy }}
variables:
  # CEL has no ranges: the places of up to 16 containers.
  - name: places
    expression: '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15].filter(i, i < size(object.spec.containers))'
mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: |
        {{- include "forebay.patches" . | nindent 8 }}
{{- end -}}
