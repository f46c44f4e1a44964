{{/* Labels of every object. */}}
{{- define "weir.labels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Namespace of the pods that run on each node. */}}
{{- define "weir.agentsNamespace" -}}
{{ .Values.agents.namespace | default .Release.Namespace }}
{{- end }}

{{/* Labels that select the pods of a component: dict "root" "component". */}}
{{- define "weir.selector" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Image reference: dict "root" "image". By digest where there is one, else by tag. */}}
{{- define "weir.image" -}}
{{- $images := .root.Values.images -}}
{{- with $images.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ .image.repository }}{{ with .image.digest }}@{{ . }}{{ else }}:{{ .image.tag | default $images.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Security context of a container that needs no privilege. */}}
{{- define "weir.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Security context of a pod that needs no privilege. */}}
{{- define "weir.nonroot" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Security context of a pod that needs files of the node, which are root's. Its containers have none of root's rights but those that they name. */}}
{{- define "weir.nodeFiles" -}}
runAsUser: 0
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* How the mounts of the kubelet's directory reach a container and the node: it makes them itself, or sees them only. */}}
{{- define "weir.propagation" -}}
{{- if .Values.mountBroker.enabled }}HostToContainer{{ else }}Bidirectional{{ end }}
{{- end }}

{{/* Pull secrets of a pod. */}}
{{- define "weir.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* Annotations by which Prometheus finds a metrics port. */}}
{{- define "weir.scraped" -}}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ . | quote }}
{{- end }}

{{/* Volume with what clients of all clusters attach with. The operator writes the Secret, which may come later. */}}
{{- define "weir.clientVolume" -}}
name: clients
secret:
  secretName: weir-clients
  optional: true
  defaultMode: 0440
{{- end }}
