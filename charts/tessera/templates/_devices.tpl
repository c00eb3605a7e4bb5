{{/* The device configuration, and what follows from it: one text, read by the scheduler and the agents. */}}

{{- define "tessera.deviceConfig" -}}
{{- $given := index .Values "device-config" "content" -}}
{{- if $given -}}
{{ $given }}
{{- else -}}
{{- $d := .Values.devices -}}
{{- $sections := dict -}}
{{- $_ := set $sections "nvidia" (mergeOverwrite (fromYaml (include "tessera.nvidia" .)) (deepCopy $d.nvidia.config)) -}}
{{- range $vendor, $section := fromYaml (include "tessera.otherVendors" .) -}}
{{- $values := index $d $vendor -}}
{{- if $values.enabled -}}
{{- $_ := set $sections $vendor (mergeOverwrite $section (deepCopy $values.config)) -}}
{{- end -}}
{{- end -}}
{{- if $d.iluvatar.enabled -}}
{{- $_ := set $sections "iluvatars" (fromYamlArray (.Files.Get "files/iluvatars.yaml")) -}}
{{- end -}}
{{- if $d.ascend.enabled -}}
{{- $chips := fromYamlArray (.Files.Get "files/vnpus.yaml") -}}
{{- range $chips }}{{- $_ := set . "runtimeClassName" $d.ascend.runtimeClassName }}{{- end -}}
{{- $_ := set $sections "vnpus" (dict "hamiVnpuCore" $d.ascend.hamiVnpuCore "configs" $chips) -}}
{{- end -}}
{{ toYaml $sections }}
{{- end -}}
{{- end -}}

{{- define "tessera.nvidia" -}}
{{- $p := .Values.devicePlugin -}}
resourceCountName: {{ .Values.resourceName }}
resourceMemoryName: {{ .Values.resourceMem }}
resourceMemoryPercentageName: {{ .Values.resourceMemPercentage }}
resourceCoreName: {{ .Values.resourceCores }}
resourcePriorityName: {{ .Values.resourcePriority }}
overwriteEnv: {{ include "tessera.true" .Values.scheduler.overwriteEnv | default "false" }}
defaultMemory: 0
defaultCores: 0
defaultGPUNum: 1
memoryFactor: 1
gpuCorePolicy: {{ .Values.devices.nvidia.gpuCorePolicy }}
libCudaLogLevel: {{ .Values.devices.nvidia.libCudaLogLevel }}
runtimeClassName: {{ $p.runtimeClassName | quote }}
deviceSplitCount: {{ $p.deviceSplitCount }}
deviceMemoryScaling: {{ $p.deviceMemoryScaling }}
deviceCoreScaling: {{ $p.deviceCoreScaling }}
preConfiguredDeviceMemory: {{ $p.preConfiguredDeviceMemory }}
enableNumaTopology: {{ $p.enableNumaTopology }}
{{- if include "tessera.true" $p.disablecorelimit }}
disableCoreLimit: true
{{- end }}
migProfileAllowlist:
  {{- .Files.Get "files/mig-profiles.yaml" | nindent 2 }}
{{- end -}}

{{- define "tessera.otherVendors" -}}
amd:
  resourceCountName: amd.com/gpu
  resourceMemoryName: amd.com/gpumem
  resourceCoreName: amd.com/gpucores
awsneuron:
  resourceCountName: aws.amazon.com/neuron
  resourceCoreName: aws.amazon.com/neuroncore
biren:
  resourceCountName: {{ .Values.birenResourceName }}
cambricon:
  resourceCountName: {{ .Values.mluResourceName }}
  resourceMemoryName: {{ .Values.mluResourceMem }}
  resourceCoreName: {{ .Values.mluResourceCores }}
enflame:
  resourceNameGCU: enflame.com/gcu
  resourceNameDRSGCU: {{ .Values.enflameResourceNameDRSGCU }}
  resourceNameGCUMemory: {{ .Values.enflameResourceNameGCUMemory }}
  resourceNameGCUCore: {{ .Values.enflameResourceNameGCUCore }}
hygon:
  resourceCountName: {{ .Values.dcuResourceName }}
  resourceMemoryName: {{ .Values.dcuResourceMem }}
  resourceCoreName: {{ .Values.dcuResourceCores }}
  memoryFactor: 1
kunlun:
  resourceCountName: {{ .Values.kunlunResourceName }}
  resourceVCountName: {{ .Values.kunlunResourceVCountName }}
  resourceVMemoryName: {{ .Values.kunlunResourceVMemoryName }}
metax:
  resourceCountName: metax-tech.com/gpu
  resourceVCountName: {{ .Values.metaxResourceName }}
  resourceVMemoryName: {{ .Values.metaxResourceMem }}
  resourceVCoreName: {{ .Values.metaxResourceCore }}
  sgpuTopologyAware: {{ include "tessera.true" .Values.metaxsGPUTopologyAware | default "false" }}
mthreads:
  resourceCountName: mthreads.com/vgpu
  resourceMemoryName: mthreads.com/sgpu-memory
  resourceCoreName: mthreads.com/sgpu-core
vastai:
  resourceCountName: {{ .Values.vastaiResourceName }}
{{- end -}}

{{/*
Every resource that the configuration names, and those in customresources of enabled vendors, sorted, as a JSON array.
Taken from the configuration itself, so that a configuration that is given as text counts too.
*/}}
{{- define "tessera.resources" -}}
{{- $names := list -}}
{{- $tables := list -}}
{{- range $section := values (fromYaml (include "tessera.deviceConfig" .)) -}}
{{- if kindIs "map" $section -}}
{{- $tables = append $tables $section -}}
{{- $tables = concat $tables (default list (get $section "configs")) -}}
{{- else if kindIs "slice" $section -}}
{{- $tables = concat $tables $section -}}
{{- end -}}
{{- end -}}
{{- range $table := $tables -}}
{{- range $key, $value := $table -}}
{{- if and (regexMatch "^resource.*Name" $key) (kindIs "string" $value) -}}
{{- if $value }}{{- $names = append $names $value }}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $vendor := values .Values.devices -}}
{{- if get $vendor "enabled" -}}{{- $names = concat $names (default list $vendor.customresources) -}}{{- end -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The resources among them that a container must name to get a device, as a JSON array. */}}
{{- define "tessera.countResources" -}}
{{- $names := list -}}
{{- range $section := values (fromYaml (include "tessera.deviceConfig" .)) -}}
{{- $tables := $section -}}
{{- if kindIs "map" $section }}{{- $tables = prepend (default list (get $section "configs")) $section }}{{- end -}}
{{- range $table := $tables -}}
{{- range $key, $value := $table -}}
{{- if and (regexMatch "^resource(Name|V?CountName|Name(DRS)?GCU)$" $key) (kindIs "string" $value) -}}
{{- if $value }}{{- $names = append $names $value }}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* Whether the webhook also changes pods that ask for no devices. */}}
{{- define "tessera.touchesAllPods" -}}
{{- range values (fromYaml (include "tessera.deviceConfig" .)) -}}
{{- if kindIs "map" . -}}
{{- if get . "overwriteEnv" }}true{{ end -}}
{{- range default list (get . "configs") }}{{ if get . "overwriteEnv" }}true{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The modes of single nodes and cards, as a JSON array, without those of an external ConfigMap. */}}
{{- define "tessera.operatingModes" -}}
{{- $modes := list -}}
{{- with .Values.devicePlugin.nodeConfiguration.config -}}
{{- range (default list (get (fromJson .) "nodeconfig")) }}
{{- $modes = append $modes (default "hami-core" (get . "operatingmode")) }}
{{- range (default list (get . "cardmodes")) }}{{- $modes = append $modes (get . "operatingmode") }}{{- end }}
{{- end -}}
{{- end -}}
{{- $modes | uniq | toJson -}}
{{- end -}}

{{/* Whether nodes or cards are in mode mps. The content of an external ConfigMap is unknown; if the agents are privileged, they may be. */}}
{{- define "tessera.usesMps" -}}
{{- $p := .Values.devicePlugin -}}
{{- if or (and $p.nodeConfiguration.externalConfigName $p.privileged) (has "mps" (fromJsonArray (include "tessera.operatingModes" .))) }}true{{ end -}}
{{- end -}}

{{/* Whether MPS daemons have containers of their own. Agents find them by process ids, so not if hostPID is false. */}}
{{- define "tessera.mpsDaemons.used" -}}
{{- $p := .Values.devicePlugin -}}
{{- if and $p.enabled $p.mpsDaemons.enabled (include "tessera.usesMps" .) (ne (toString $p.hostPID) "false") }}true{{ end -}}
{{- end -}}
