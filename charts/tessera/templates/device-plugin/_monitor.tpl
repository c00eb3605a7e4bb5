{{/*
The container that shows how containers use the cards of the node: (dict "root" . "hook" ... "driverRoot" ... "mig" ...
"privileged" ...). It has the agent's image, account and rights on the node, less what only the agent needs.
*/}}
{{- define "tessera.monitor.container" -}}
{{- $p := .root.Values.devicePlugin -}}
{{- $monitor := $p.monitor -}}
- name: monitor
  image: {{ include "tessera.image" (list .root $p.image) }}
  imagePullPolicy: {{ $p.image.pullPolicy }}
  command: [tessera, monitor]
  args:
    - --hook-path={{ .hook }}
    - --resync-interval={{ $monitor.resyncInterval }}
    - --metrics-bind-address={{ $monitor.metricsBindAddress }}
    {{- if include "tessera.true" .root.Values.legacyMetrics }}
    - --legacy-metrics
    {{- end }}
    {{- range $monitor.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  env:
    - name: NODE_NAME
      valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
    # For NVIDIA's container runtime: all cards, and only the management part of the driver.
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
    {{- if .mig }}
    - {name: NVIDIA_MIG_MONITOR_DEVICES, value: all}
    {{- end }}
    {{- range $name, $value := $monitor.extraEnvs }}
    - {name: {{ $name }}, value: {{ $value | quote }}}
    {{- end }}
  ports:
    - {name: monitor, containerPort: {{ include "tessera.port" $monitor.metricsBindAddress }}}
  # Only whether it listens: it waits by itself for an apiserver or a directory that is away.
  livenessProbe:
    tcpSocket: {port: monitor}
    initialDelaySeconds: 10
    periodSeconds: 10
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: monitor}
    periodSeconds: 10
    timeoutSeconds: 5
  securityContext:
    {{- if $p.securityContext }}
    {{- toYaml $p.securityContext | nindent 4 }}
    {{- else if .privileged }}
    privileged: true
    runAsUser: 0
    readOnlyRootFilesystem: true
    {{- else }}
    privileged: false
    # It reads and writes the files of containers of any user, and removes them when their pod is gone.
    runAsUser: 0
    runAsGroup: 0
    {{- if not .mig }}
    allowPrivilegeEscalation: false
    {{- end }}
    readOnlyRootFilesystem: true
    seccompProfile: {type: RuntimeDefault}
    capabilities:
      drop: [ALL]
      add: [DAC_OVERRIDE, FOWNER{{ if .mig }}, SYS_ADMIN{{ end }}]
    {{- end }}
  {{- with $monitor.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    # A directory for each container with a slice.
    - {name: hook, mountPath: {{ .hook }}}
    {{- if .driverRoot }}
    - {name: driver-root, mountPath: /driver-root, readOnly: true, mountPropagation: HostToContainer}
    {{- end }}
{{- end -}}
