{{/* What all objects are named after. */}}
{{- define "gantry.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if .Values.nameOverride -}}
{{- printf "%s-%s" .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What tells the pods of this release from others. */}}
{{- define "gantry.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gantry.labels" -}}
{{ include "gantry.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "gantry.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* Refuses where most people have typed one namespace too few. */}}
{{- define "gantry.checks" -}}
{{- if and (eq .Release.Namespace "default") (not .Values.allowDefaultNamespace) -}}
{{- fail "the namespace default is where everybody's pods are: install with --namespace gantry-system --create-namespace, or set allowDefaultNamespace" -}}
{{- end -}}
{{- if and .Values.toolkit.enabled .Values.runtimeClassName -}}
{{- fail "runtimeClassName: the agent installs the runtime that toolkit.enabled asks for, and cannot start with it: leave it out" -}}
{{- end -}}
{{- if not .Values.gfd.enabled -}}
{{- fail "gfd.enabled: the agent writes the labels itself, and cannot leave them out yet: remove the value" -}}
{{- end -}}
{{- end -}}

{{/* Who decides which GPU a container gets: where gantry-runtime is installed, it asks. */}}
{{- define "gantry.identity" -}}
{{- if and .Values.toolkit.enabled (eq .Values.identity "auto") -}}
shim
{{- else -}}
{{- .Values.identity -}}
{{- end -}}
{{- end -}}

{{/* The rights of a container that only writes files of root's. */}}
{{- define "gantry.writes" -}}
runAsUser: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The container's probes, whichever process it runs. */}}
{{- define "gantry.probes" -}}
ports:
- name: http
  containerPort: 8080
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  initialDelaySeconds: 5
  periodSeconds: 15
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: 5
{{- end -}}

{{/* A process that needs nothing of its node. */}}
{{- define "gantry.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The rest of a pod that works for the whole cluster; `dict "root" . "values" .Values.scheduler "component" "scheduler"`. */}}
{{- define "gantry.spread" -}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "gantry.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
