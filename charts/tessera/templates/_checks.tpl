{{/* Refuses values that contradict each other, and says what to write. The schema checks everything else. */}}

{{- define "tessera.check" -}}
{{- range $name, $image := dict "scheduler.extender.image" .Values.scheduler.extender.image "devicePlugin.image" .Values.devicePlugin.image -}}
{{- if regexMatch "(^|/)(projecthami|hami)(/|$)" (lower $image.repository) -}}
{{- fail (printf "%s.repository is %s, which is HAMi's image and has none of Tessera's programs. Other values of HAMi may stay, but scheduler.extender.image, devicePlugin.image and global.imageTag must name Tessera's image, or be left out" $name $image.repository) -}}
{{- end -}}
{{- end -}}
{{- $hook := printf "%s/vgpu" (trimSuffix "/" .Values.global.gpuHookPath) -}}
{{- with .Values.devicePlugin.libPath -}}
{{- if ne (trimSuffix "/" .) $hook -}}
{{- fail (printf "devicePlugin.libPath is %s, but containers look for the library in %s (global.gpuHookPath): change both, or leave libPath empty" . $hook) -}}
{{- end -}}
{{- end -}}
{{- with .Values.devicePlugin.monitor.ctrPath -}}
{{- if ne (trimSuffix "/" .) (printf "%s/containers" $hook) -}}
{{- fail (printf "devicePlugin.monitor.ctrPath is %s, but containers have their directories in %s/containers (global.gpuHookPath): change both, or leave ctrPath empty" . $hook) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.scheduler.tls.existingSecret (not .Values.scheduler.tls.caBundle) -}}
{{- fail "scheduler.tls.existingSecret needs scheduler.tls.caBundle: without it the apiserver does not trust the webhook" -}}
{{- end -}}
{{- if and .Values.scheduler.tls.existingSecret .Values.scheduler.certManager.enabled -}}
{{- fail "scheduler.tls.existingSecret and scheduler.certManager.enabled are two ways to one certificate: keep one" -}}
{{- end -}}
{{- if and .Values.scheduler.admissionWebhook.enabled .Values.scheduler.admissionWebhook.customURL.enabled (eq (include "tessera.certificates" .) "own") -}}
{{- fail "scheduler.admissionWebhook.customURL needs a certificate for that host: give scheduler.tls.existingSecret or enable scheduler.certManager" -}}
{{- end -}}
{{- if and .Values.scheduler.dashboard.enabled (not .Values.scheduler.admissionWebhook.enabled) -}}
{{- fail "scheduler.dashboard is served with the webhook's certificate, and scheduler.admissionWebhook is off: enable it, or run `tessera dashboard` on your own machine" -}}
{{- end -}}
{{- if and .Values.devicePlugin.enabled .Values.devicePlugin.dra.enabled -}}
{{- if semverCompare "<1.34-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "devicePlugin.dra needs Kubernetes 1.34, and this is %s: leave it off" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if ne .Values.devicePlugin.migStrategy "none" -}}
{{- fail "devicePlugin.dra does not hand out MIG instances that exist: leave migStrategy at none, and set operatingmode mig for a node" -}}
{{- end -}}
{{- if contains "cdi-annotations" .Values.devicePlugin.deviceListStrategy -}}
{{- fail "devicePlugin.dra cannot set annotations: write cdi-cri instead of cdi-annotations in devicePlugin.deviceListStrategy" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.devicePlugin.enabled .Values.devicePlugin.dra.enabled (eq .Values.devicePlugin.dra.allocator "tessera") (not .Values.scheduler.dra.enabled) -}}
{{- fail "devicePlugin.dra.allocator is tessera, but scheduler.dra.enabled is false: no claim would be allocated; set it to true, or the allocator to kube-scheduler" -}}
{{- end -}}
{{- if and .Values.scheduler.dra.enabled (semverCompare "<1.34-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "scheduler.dra needs Kubernetes 1.34, and this is %s: leave it off" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if .Values.scheduler.dra.convert -}}
{{- if not (and .Values.scheduler.dra.enabled .Values.scheduler.admissionWebhook.enabled) -}}
{{- fail "scheduler.dra.convert needs scheduler.dra.enabled and scheduler.admissionWebhook.enabled: the webhook writes the claims, and the scheduler allocates them" -}}
{{- end -}}
{{- if and .Values.devicePlugin.enabled (not (and .Values.devicePlugin.dra.enabled (eq .Values.devicePlugin.dra.allocator "tessera") (eq .Values.devicePlugin.dra.deviceClass "gpu.tessera.io"))) -}}
{{- fail "scheduler.dra.convert needs devicePlugin.dra.enabled with allocator tessera and deviceClass gpu.tessera.io: otherwise no card is for the claims that it writes" -}}
{{- end -}}
{{- end -}}
{{- with .Values.devicePlugin.nodeConfiguration.config -}}
{{- with get (fromJson .) "Error" -}}
{{- fail (printf "devicePlugin.nodeConfiguration.config is no JSON: %s" .) -}}
{{- end -}}
{{- end -}}
{{- with index .Values "device-config" "content" -}}
{{- with get (fromYaml .) "Error" -}}
{{- fail (printf "device-config.content is no YAML: %s" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.devicePlugin.createRuntimeClass (not .Values.devicePlugin.runtimeClassName) -}}
{{- fail "devicePlugin.createRuntimeClass needs devicePlugin.runtimeClassName" -}}
{{- end -}}
{{- end -}}

{{/* The source of the webhook's certificate: own, cert-manager or files. */}}
{{- define "tessera.certificates" -}}
{{- if .Values.scheduler.certManager.enabled }}cert-manager
{{- else if .Values.scheduler.tls.existingSecret }}files
{{- else }}own
{{- end -}}
{{- end -}}

{{- define "tessera.tlsSecret" -}}
{{- default (printf "%s-tls" (include "tessera.scheduler" .)) .Values.scheduler.tls.existingSecret -}}
{{- end -}}

{{/* CEL in the webhook's configuration is on by default from 1.28 on, policies that validate from 1.30 and those that mutate from 1.36 on. */}}
{{- define "tessera.hasMatchConditions" -}}
{{- if semverCompare ">=1.28.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{- define "tessera.hasPolicies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{- define "tessera.hasMutatingPolicies" -}}
{{- if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{/*
The names that only Tessera and the plugins write, as a pattern for CEL; {{`make generate`}} writes it.
*/}}
{{- define "tessera.reservedPattern" -}}
^(tessera[.]io/([^gmp].*|g([^a].*|a([^n].*|n([^g].*)?)?)?|m([^a].*|a([^x].*|x([^-].*|-([^p].*|p([^o].*|o([^d].*|d([^s].*|s([^-].*|-([^p].*|p([^e].*|e([^r].*|r([^-].*|-([^c].*|c([^a].*|a([^r].*|r([^d].*|d(.+))?)?)?)?)?)?)?)?)?)?)?)?)?)?)?)?|p([^r].*|r([^e].*|e([^e].*|e([^m].*|m([^p].*|p([^t].*|t([^i].*|i([^b].*|b([^l].*|l([^e].*|e(.+))?)?)?)?)?)?)?)?)?)?)|hami[.]io/(vgpu-.*|bind-.*|.*-devices-(to-allocate|allocated)|kunlun-allocated))$
{{- end -}}
