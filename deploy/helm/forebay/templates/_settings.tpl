{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{/* What the server refuses in forebay.yaml and a JSON schema cannot express. */}}

{{/* A size, rate, time or percentage as a number of its smallest unit. */}}
{{- define "forebay.number" -}}
{{- $text := ternary . (printf "%.0f" (float64 .)) (kindIs "string" .) | trimSuffix "/s" -}}
{{- $factors := dict "" 1 "%" 1 "B" 1 "ms" 1 "s" 1e3 "m" 6e4 "h" 36e5 "d" 864e5 "KB" 1e3 "MB" 1e6 "GB" 1e9 "TB" 1e12 "PB" 1e15 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 "TiB" 1099511627776 "PiB" 1125899906842624 "EiB" 1152921504606846976 -}}
{{- $digits := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- mulf $digits (get $factors (trimPrefix $digits $text)) -}}
{{- end -}}

{{/* Fails if a value is outside its range "LOW..HIGH". Of: "name" for the message, "value",
     "accepts". */}}
{{- define "forebay.judgeRange" -}}
{{- $ends := splitList ".." .accepts -}}
{{- if and (hasSuffix "/s" .accepts) (not (kindIs "string" .value)) (ne (toString .value) "0") -}}
{{- fail (printf "%s: %v is not a rate: write bytes a second, such as 250MB/s" .name .value) -}}
{{- end -}}
{{- $number := include "forebay.number" .value | float64 -}}
{{- if or (lt $number (include "forebay.number" (first $ends) | float64)) (gt $number (include "forebay.number" (last $ends) | float64)) -}}
{{- fail (printf "%s: %v is not between %s and %s" .name .value (first $ends) (last $ends)) -}}
{{- end -}}
{{- if and (gt $number 0.0) (lt $number 1.0) -}}
{{- fail (printf "%s: %v is less than one byte or one millisecond" .name .value) -}}
{{- end -}}
{{- if and (hasSuffix ".block_size" .name) (ne (mod 16777216 (int64 $number)) 0) -}}
{{- fail (printf "%s: %v is not a power of two" .name .value) -}}
{{- end -}}
{{- end -}}

{{/* Fails if an endpoint names a bucket of AWS, or if "addressing" is not for it. Of: "name",
     "endpoint", "addressing". */}}
{{- define "forebay.judgeEndpoint" -}}
{{- $host := regexFind "^https?://[^/]+" .endpoint | trimPrefix "https://" | trimPrefix "http://" -}}
{{- if and (regexMatch "[.]amazonaws[.]com([.]cn)?(:[0-9]+)?$" $host) (not (contains ".vpce." $host)) -}}
{{- if hasPrefix "s3express-" $host -}}
{{- fail (printf "%s: Forebay does not support directory buckets (S3 Express): let clients ask S3 for them" .name) -}}
{{- end -}}
{{- if or (regexMatch "[.]s3[.-]" $host) (regexMatch "^https?://[^/]+/." .endpoint) -}}
{{- fail (printf "%s: an endpoint must not name a bucket, because clients name it" .name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .addressing "virtual") (regexMatch "^([0-9.]+(:[0-9]+)?$|\\[)" $host) -}}
{{- fail (printf "%s: it is an IP address: set addressing to path" .name) -}}
{{- end -}}
{{- end -}}

{{- define "forebay.judgeRanges" -}}
{{- $ranges := .Files.Get "files/ranges.json" | fromJson -}}
{{- range $section, $settings := .Values.config -}}
{{- if kindIs "map" $settings -}}
{{- range $leaf, $value := $settings -}}
{{- $key := printf "%s.%s" $section $leaf -}}
{{- if and (hasKey $ranges $key) (ne (toString $value) "auto") -}}
{{- include "forebay.judgeRange" (dict "name" (printf "config.%s" $key) "value" $value "accepts" (get $ranges $key)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $i, $rule := .Values.config.rules -}}
{{- if and $rule.pin $rule.share -}}
{{- fail (printf "config.rules[%d]: a rule has a pin or a share, not both" $i) -}}
{{- end -}}
{{- range $leaf, $value := $rule -}}
{{- if hasKey $ranges (printf "rules[].%s" $leaf) -}}
{{- include "forebay.judgeRange" (dict "name" (printf "config.rules[%d].%s" $i $leaf) "value" $value "accepts" (get $ranges (printf "rules[].%s" $leaf))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "forebay.judgeRange" (dict "name" "cache.size" "value" (printf "%sB" .Values.cache.size) "accepts" (get $ranges "cache.size")) -}}
{{- end -}}

{{- define "forebay.judgeOrigins" -}}
{{- $config := .Values.config -}}
{{- $origin := $config.origin | default dict -}}
{{- $addressing := $origin.addressing | default "auto" -}}
{{- include "forebay.judgeEndpoint" (dict "name" "origin.endpoint" "endpoint" .Values.origin.endpoint "addressing" $addressing) -}}
{{- $endpoints := list .Values.origin.endpoint -}}
{{- $names := list -}}
{{- range $i, $bucket := $config.buckets -}}
{{- $name := printf "config.buckets[%d]" $i -}}
{{- with $bucket.endpoint -}}
{{- $endpoints = append $endpoints . -}}
{{- include "forebay.judgeEndpoint" (dict "name" (printf "%s.endpoint" $name) "endpoint" . "addressing" "auto") -}}
{{- end -}}
{{- if not (hasPrefix "dir:" ($bucket.origin | default "")) -}}
{{- include "forebay.judgeEndpoint" (dict "name" $name "endpoint" ($bucket.endpoint | default $.Values.origin.endpoint) "addressing" ($bucket.addressing | default "auto")) -}}
{{- end -}}
{{- if and $bucket.requester_pays (hasPrefix "dir:" ($bucket.origin | default "")) -}}
{{- fail (printf "%s.requester_pays: nobody pays for a bucket from a directory" $name) -}}
{{- end -}}
{{- if and $bucket.requester_pays (eq (toString ($bucket.credentials | default (dig "source" "" ($config.credentials | default dict)))) "anonymous") -}}
{{- fail (printf "%s.requester_pays: the bucket's credentials are anonymous, and only the owner of keys can pay" $name) -}}
{{- end -}}
{{- if has $bucket.name $names -}}
{{- fail (printf "%s: bucket %q is listed twice" $name $bucket.name) -}}
{{- end -}}
{{- $names = append $names $bucket.name -}}
{{- end -}}
{{- if contains "@" ($origin.proxy | default "") -}}
{{- fail "config.origin.proxy: user and password belong into the Secret of origin.proxyAuthSecret" -}}
{{- end -}}
{{- if and $origin.proxy (not (regexMatch "(^|,)(https:|,|$)" (join "," $endpoints))) -}}
{{- fail "config.origin.proxy: it is for https origins, and no origin is https" -}}
{{- end -}}
{{- if and (eq (dig "source" "" ($config.credentials | default dict)) "config") (not .Values.credentials.existingSecret) -}}
{{- fail "config.credentials.source: config needs credentials.existingSecret" -}}
{{- end -}}
{{- end -}}
