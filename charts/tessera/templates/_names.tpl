{{/* Names, labels and images. */}}

{{- define "tessera.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.fullname" -}}
{{- $name := include "tessera.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tessera.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "tessera.scheduler" -}}{{ include "tessera.fullname" . }}-scheduler{{- end -}}
{{- define "tessera.devicePlugin" -}}{{ include "tessera.fullname" . }}-device-plugin{{- end -}}
{{- define "tessera.mpsDaemons" -}}{{ include "tessera.fullname" . }}-mps-daemons{{- end -}}
{{- define "tessera.webhook" -}}{{ include "tessera.fullname" . }}-webhook{{- end -}}

{{- define "tessera.scheduler.account" -}}
{{- default (include "tessera.scheduler" .) .Values.scheduler.serviceAccountName -}}
{{- end -}}

{{- define "tessera.devicePlugin.account" -}}
{{- default (include "tessera.devicePlugin" .) .Values.devicePlugin.serviceAccountName -}}
{{- end -}}

{{/* The user names of the two service accounts. */}}
{{- define "tessera.scheduler.user" -}}
system:serviceaccount:{{ include "tessera.namespace" . }}:{{ include "tessera.scheduler.account" . }}
{{- end -}}

{{- define "tessera.devicePlugin.user" -}}
system:serviceaccount:{{ include "tessera.namespace" . }}:{{ include "tessera.devicePlugin.account" . }}
{{- end -}}

{{- define "tessera.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "tessera.selector" . }}
{{- with .Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tessera.selector" -}}
app.kubernetes.io/name: {{ include "tessera.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of an object of one component: (list . "scheduler"). */}}
{{- define "tessera.componentLabels" -}}
{{ include "tessera.labels" (first .) }}
app.kubernetes.io/component: tessera-{{ last . }}
{{- end -}}

{{- define "tessera.componentSelector" -}}
{{ include "tessera.selector" (first .) }}
app.kubernetes.io/component: tessera-{{ last . }}
{{- end -}}

{{/* The annotations that all objects have, as a block of metadata. */}}
{{- define "tessera.annotations" -}}
{{- with .Values.global.annotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Tessera's image, for one component: (list . $image). */}}
{{- define "tessera.image" -}}
{{- $root := first . -}}{{- $image := last . -}}
{{- $registry := default $image.registry $root.Values.global.imageRegistry -}}
{{- $tag := default (default $root.Chart.AppVersion $root.Values.global.imageTag) $image.tag -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ $image.repository }}:{{ $tag }}
{{- end -}}

{{/*
The image of kube-scheduler. Registries of Tessera's image need not have it, so global.imageRegistry does not count.
Distributions add a suffix to the version of Kubernetes (v1.33.2-eks-1a2b3c); images of kube-scheduler do not.
*/}}
{{- define "tessera.kubeSchedulerImage" -}}
{{- $image := .Values.scheduler.kubeScheduler.image -}}
{{- $tag := default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version) $image.tag -}}
{{- if $image.registry }}{{ $image.registry }}/{{ end }}{{ $image.repository }}:{{ $tag }}
{{- end -}}

{{/* (list . $image ...): the secrets of all of them, each once. A secret is a name, or an object with one. */}}
{{- define "tessera.pullSecrets" -}}
{{- $given := default list (first .).Values.global.imagePullSecrets -}}
{{- range rest . }}{{- $given = concat $given (default list .pullSecrets) }}{{- end -}}
{{- $names := list -}}
{{- range $given -}}
{{- if kindIs "map" . }}{{- $names = append $names .name }}{{- else }}{{- $names = append $names . }}{{- end -}}
{{- end -}}
{{- with uniq $names -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The port of an address such as :9395 or 0.0.0.0:9395. */}}
{{- define "tessera.port" -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}

{{/* Switches are true or "true": HAMi's values have both. Empty text means false. */}}
{{- define "tessera.true" -}}
{{- if eq (toString .) "true" }}true{{ end -}}
{{- end -}}
