{{/* What the guarding policies have in common: whom they exempt, and what they ask of a container. All texts are CEL. */}}

{{/* The caller is none of the accounts that write allocations. */}}
{{- define "tessera.isOther" -}}
{{- $users := list (include "tessera.scheduler.user" .) -}}
{{- if .Values.devicePlugin.enabled }}{{- $users = append $users (include "tessera.devicePlugin.user" .) }}{{- end -}}
{{- $users = concat $users .Values.annotationGuard.trustedUsers -}}
!(request.userInfo.username in {{ toJson $users }})
{{- with .Values.annotationGuard.trustedGroups }} &&
!request.userInfo.?groups.orValue([]).exists(group, group in {{ toJson . }})
{{- end }}
{{- end -}}

{{/* Namespaces that no policy about variables concerns, besides those with a label, as a JSON array. */}}
{{- define "tessera.exemptNamespaces" -}}
{{- $names := concat .Values.annotationGuard.exemptNamespaces (default list .Values.scheduler.admissionWebhook.whitelistNamespaces) -}}
{{- append $names (include "tessera.namespace" .) | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Only those who may label a namespace can exempt it. */}}
{{- define "tessera.guardedNamespaces" -}}
namespaceSelector:
  matchExpressions:
    - {key: hami.io/webhook, operator: NotIn, values: [ignore]}
    - {key: tessera.io/guard, operator: NotIn, values: [ignore]}
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "tessera.exemptNamespaces" . }}}
{{- end -}}

{{/* Every creation of a pod, except of mirror pods, which only kubelets create. */}}
{{- define "tessera.isNoMirrorPod" -}}
!('system:nodes' in request.userInfo.?groups.orValue([]))
{{- end -}}

{{/* How the scheduler runs: HAMi's name of a flag, with or without a value, as the last argument of that name says. */}}
{{- define "tessera.injects" -}}
{{- $injects := "true" -}}
{{- range .Values.scheduler.extender.extraArgs -}}
{{- if regexMatch "^--inject-identity(=true)?$" . }}{{ $injects = "true" }}{{ else if eq . "--inject-identity=false" }}{{ $injects = "" }}{{ end -}}
{{- end -}}
{{- $injects -}}
{{- end -}}

{{- define "tessera.allowsDisableControl" -}}
{{- $allows := "" -}}
{{- range .Values.scheduler.extender.extraArgs -}}
{{- if regexMatch "^--allow-disable-control(=true)?$" . }}{{ $allows = "true" }}{{ else if eq . "--allow-disable-control=false" }}{{ $allows = "" }}{{ end -}}
{{- end -}}
{{- $allows -}}
{{- end -}}

{{/*
The makers that are configured and whose cards a variable can give away, as JSON: the lists of
files/protected-variables.yaml, and from the configuration `counts`, the resources that ask for cards, `cores`, and
`hides`, whether cards are hidden from all other containers.
*/}}
{{- define "tessera.makers" -}}
{{- $configured := fromYaml (include "tessera.deviceConfig" .) -}}
{{- $found := dict -}}
{{- range $section, $maker := fromYaml (.Files.Get "files/protected-variables.yaml") -}}
{{- $tables := list -}}
{{- with get $configured $section -}}
{{- $tables = prepend (default list (get . "configs")) . -}}
{{- end -}}
{{- $counts := list -}}{{- $hides := false -}}{{- $cores := "" -}}
{{- range $tables -}}
{{- with get . "resourceCountName" }}{{- $counts = append $counts . }}{{- end -}}
{{- with get . "resourceName" }}{{- $counts = append $counts . }}{{- end -}}
{{- with get . "resourceCoreName" }}{{- $cores = . }}{{- end -}}
{{- if get . "overwriteEnv" }}{{- $hides = true }}{{- end -}}
{{- end -}}
{{- if $counts -}}
{{- $literals := dict $maker.devices $maker.harmless -}}
{{- $switches := $maker.switches -}}
{{- if include "tessera.allowsDisableControl" $ }}{{- $switches = dict }}{{- end -}}
{{- range $name, $values := $switches -}}
{{- $more := list -}}
{{- if eq $name "CUDA_REDIRECT" }}{{- $more = list (printf "%s/vgpu/libvgpu.so" (trimSuffix "/" $.Values.global.gpuHookPath)) }}{{- end -}}
{{- if eq $name "GPU_CORE_UTILIZATION_POLICY" -}}
{{- $section := get $configured $section -}}
{{- if or (eq (default "" (get $section "gpuCorePolicy")) "disable") (get $section "disableCoreLimit") }}{{- $more = list "disable" }}{{- end -}}
{{- end -}}
{{- $_ := set $literals $name (concat $values $more) -}}
{{- end -}}
{{- $pattern := $maker.pattern -}}
{{- range $name := keys $switches | sortAlpha }}{{- $pattern = printf "%s|%s" $pattern $name }}{{- end -}}
{{- $lists := dict "devices" $maker.devices "noDevices" $maker.noDevices "names" $maker.names "instances" $maker.instances -}}
{{- $_ := set $lists "references" $maker.references -}}
{{- $_ := set $lists "switches" (keys $switches | sortAlpha) -}}
{{- $_ := set $lists "literals" $literals -}}
{{- $_ := set $lists "pattern" (printf "^(?:%s)$" $pattern) -}}
{{- $_ := set $lists "counts" (uniq $counts | sortAlpha) -}}
{{- $_ := set $lists "cores" $cores -}}
{{- $_ := set $lists "hides" $hides -}}
{{- $_ := set $found $section $lists -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* The container c asks for one of these resources: (list $resources). */}}
{{- define "tessera.asks" -}}
c.?resources.?limits.orValue({}).exists(r, r in {{ toJson . }} && string(c.resources.limits[r]) != '0')
{{- end -}}

{{/* The container c asks for existing instances of this maker's cards. */}}
{{- define "tessera.asksForInstances" -}}
{{- if .instances -}}
c.?resources.?limits.orValue({}).exists(r, r.startsWith('{{ .instances }}'))
{{- else -}}
false
{{- end -}}
{{- end -}}

{{/* An envFrom of the container c may bring a variable of this maker. */}}
{{- define "tessera.isExposed" -}}
c.?envFrom.orValue([]).exists(s, {{ toJson .names }}.exists(n, n.startsWith(s.?prefix.orValue('')) || s.?prefix.orValue('').startsWith(n)))
{{- end -}}

{{/* The apiserver itself hides cards from containers that ask for none; otherwise overwriteEnv is the webhook's. */}}
{{- define "tessera.hidesDevices" -}}
{{- $guard := .Values.annotationGuard -}}
{{- if and $guard.enabled $guard.protectVariables (include "tessera.hasMutatingPolicies" .) }}true{{ end -}}
{{- end -}}
