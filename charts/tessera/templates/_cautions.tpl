{{/*
What in this cluster will keep the release from working, one line each. Seen by `helm install --dry-run=server` too; `helm
template` sees no cluster and finds nothing.
*/}}
{{- define "tessera.cautions" -}}
{{- $found := list -}}
{{- $namespace := include "tessera.namespace" . -}}
{{- if .Values.devicePlugin.enabled -}}
{{- $level := dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (lookup "v1" "Namespace" "" $namespace) -}}
{{- if has $level (list "baseline" "restricted") -}}
{{- $found = append $found (printf "Namespace %s admits only %s pods, but agents mount directories of their nodes: kubectl label --overwrite namespace %s pod-security.kubernetes.io/enforce=privileged" $namespace $level $namespace) -}}
{{- end -}}
{{- with .Values.devicePlugin.runtimeClassName -}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (not $.Values.devicePlugin.createRuntimeClass) (not (lookup "node.k8s.io/v1" "RuntimeClass" "" .)) -}}
{{- $found = append $found (printf "There is no RuntimeClass %s: neither agents nor GPU pods can be created. Install NVIDIA's container toolkit, set devicePlugin.createRuntimeClass=true, or leave devicePlugin.runtimeClassName empty" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $other := (lookup "admissionregistration.k8s.io/v1" "MutatingWebhookConfiguration" "" "").items -}}
{{- if ne $other.metadata.name (include "tessera.webhook" $) -}}
{{- range default list $other.webhooks -}}
{{- if eq .name "vgpu.hami.io" -}}
{{- $found = append $found (printf "MutatingWebhookConfiguration %s changes the same pods. Remove the other scheduler and its webhook first: docs/migrating-from-hami.md" $other.metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
