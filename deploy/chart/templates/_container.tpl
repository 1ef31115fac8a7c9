{{/* One container of a group: (dict "root" $ "part" … "group" … "name" … "command" (list …) "port" … "roles" (list …)). */}}
{{- define "gpubus.container" -}}
{{- $name := include "gpubus.fullname" .root -}}
{{- $roles := .roles -}}
{{- $probe := ternary "metrics" (printf "metrics-%s" .name) (eq (int .port) 9395) -}}
- name: {{ .name }}
  image: {{ include "gpubus.image" (dict "root" .root "image" .group.image) }}
  imagePullPolicy: {{ (dig "pullPolicy" "" (.group.image | default dict)) | default .root.Values.image.pullPolicy }}
  args:
    {{- range until (int .group.verbosity) }}
    - -v
    {{- end }}
    - run
    {{- range .command }}
    - {{ . }}
    {{- end }}
    - --metrics
    - {{ .port | quote }}
    - --replicas
    - {{ include "gpubus.streamReplicas" .root | quote }}
  env:
    {{- include "gpubus.busEnv" . | nindent 4 }}
    - name: GPUBUS_NAMESPACE
      valueFrom:
        fieldRef:
          fieldPath: metadata.namespace
    {{- if or (has "recorder" $roles) (has "alerter" $roles) (has "scaler" $roles) }}
    - name: GPUBUS_METRICS
      value: {{ include "gpubus.metricsURL" .root | quote }}
    {{- with include "gpubus.metricsSecret" .root }}
    - name: GPUBUS_METRICS_USER
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: user
    - name: GPUBUS_METRICS_PASSWORD
      valueFrom:
        secretKeyRef:
          name: {{ . }}
          key: password
    {{- end }}
    {{- end }}
    {{- if has "authenticator" $roles }}
    - name: GPUBUS_CALLOUT_SEED_FILE
      value: /etc/gpubus/callout/seed
    - name: GPUBUS_AGENT_ACCOUNT
      value: system:serviceaccount:{{ .root.Release.Namespace }}:{{ $name }}-agent
    - name: GPUBUS_AGENT_AUDIENCE
      value: {{ include "gpubus.busAudience" .root }}
    {{- end }}
    {{- if has "watcher" $roles }}
    - name: GPUBUS_PREEMPTION
      value: {{ ternary "cluster" "namespace" .root.Values.dynamicConfig.preemptClusterWideFromEnv }}
    - name: GPUBUS_SCHEDULER_CONFIG
      value: configmap:{{ .root.Release.Namespace }}/{{ $name }}-config/scheduler-config.yaml
    {{- end }}
    {{- if and (has "scaler" $roles) .root.Values.scaling.offers }}
    - name: GPUBUS_OFFERS
      value: /etc/gpubus/config/offers.yaml
    {{- end }}
    {{- if has "scaler" $roles }}
    - name: GPUBUS_PLACEHOLDER_IMAGE
      value: {{ include "gpubus.thirdPartyImage" (dict "root" .root "image" .root.Values.scaling.placeholder.image) | quote }}
    {{- end }}
    {{- if has "alerter" $roles }}
    - name: GPUBUS_ALERT_RULES
      value: configmap:{{ .root.Release.Namespace }}/{{ $name }}-config/config.yaml
    {{- end }}
    {{- if has "notifier" $roles }}
    - name: GPUBUS_ALERTMANAGER
      value: {{ include "gpubus.alertmanagers" .root | quote }}
    {{- end }}
    {{- with .group.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: {{ $probe }}
      containerPort: {{ .port }}
    {{- if .admission }}
    - name: webhook
      containerPort: 9443
    {{- end }}
  {{- if or (has "gateway" $roles) (has "mutator" $roles) }}
  # Nodes go on sending reviews here for seconds, until they have heard that this pod ends: it goes on answering meanwhile.
  lifecycle:
    preStop:
      sleep:
        seconds: 8
  {{- end }}
  startupProbe:
    httpGet:
      path: /healthz
      port: {{ $probe }}
    periodSeconds: 2
    failureThreshold: 60
  livenessProbe:
    httpGet:
      path: /healthz
      port: {{ $probe }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet:
      path: /readyz
      port: {{ $probe }}
    periodSeconds: 5
    timeoutSeconds: 3
  resources:
    {{- toYaml .group.resources | nindent 4 }}
  securityContext:
    {{- include "gpubus.containerSecurity" .root | nindent 4 }}
  volumeMounts:
    {{- include "gpubus.busMounts" . | nindent 4 }}
    {{- if or (has "mutator" $roles) (and (has "scaler" $roles) .root.Values.scaling.offers) }}
    - name: config
      mountPath: /etc/gpubus/config
      readOnly: true
    {{- end }}
    {{- if .admission }}
    - name: webhook-tls
      mountPath: /etc/gpubus/webhook-tls
      readOnly: true
    {{- end }}
    {{- if has "authenticator" $roles }}
    - name: callout
      mountPath: /etc/gpubus/callout
      readOnly: true
    {{- end }}
    - name: tmp
      mountPath: /tmp
{{- end -}}
