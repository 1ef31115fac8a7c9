{{/* Names. Everything is called after the release, as guides for TensorFusion and HAMi expect: <release>-controller, <release>-scheduler. */}}
{{- define "gpubus.fullname" -}}
{{- $name := default .Release.Name .Values.fullnameOverride -}}
{{- /* Services begin with a letter, and pods of the longest StatefulSet carry its name and 11 characters in a label of 63. */}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,36}[a-z0-9])?$" $name) }}{{ fail (printf "%q cannot begin the names of Services and StatefulSets: set fullnameOverride to at most 38 lower-case letters, digits and -, the first one a letter" $name) }}{{ end -}}
{{- $name -}}
{{- end -}}

{{- define "gpubus.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: gpubus
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Labels that select the pods of one part. Call with (dict "root" $ "part" "controller"). */}}
{{- define "gpubus.selector" -}}
app.kubernetes.io/name: gpubus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{/* Labels by which affinities written for TensorFusion's and HAMi's charts find our pods. */}}
{{- define "gpubus.guideLabels" -}}
{{- if eq . "controller" }}
tensor-fusion.ai/component: operator
{{- else }}
app: {{ dict "scheduler" "hami-scheduler" "webhook" "hami-webhook" "monitor" "hami-monitor" "agent" "hami-device-plugin" | dig . (printf "gpubus-%s" .) }}
{{- end }}
{{- end -}}

{{/* An image: (dict "root" $ "image" <values with repository, tag, digest>). Images of the products that gpubus stands in for are ours here. */}}
{{- define "gpubus.image" -}}
{{- $ours := .root.Values.image -}}
{{- $given := .image | default dict -}}
{{- $foreign := or (hasPrefix "projecthami/" ($given.repository | default "")) (hasPrefix "tensorfusion/" ($given.repository | default "")) -}}
{{- if $foreign -}}{{- $given = dict -}}{{- end -}}
{{- $repository := $given.repository | default $ours.repository -}}
{{- $tag := $given.tag | default $ours.tag | default .root.Chart.AppVersion -}}
{{- $digest := $given.digest | default $ours.digest -}}
{{- include "gpubus.pinned" (dict "root" .root "repository" $repository "tag" $tag "digest" $digest) -}}
{{- end -}}

{{- define "gpubus.pinned" -}}
{{- if and (not .digest) (or (not .tag) (eq (toString .tag) "latest")) -}}
{{- fail (printf "image %s needs a tag other than latest, or a digest: a floating one changes under running pods" .repository) -}}
{{- end -}}
{{- $registry := .root.Values.global.imageRegistry -}}
{{- if $registry }}{{ trimSuffix "/" $registry }}/{{ end }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end -}}
{{- end -}}

{{- define "gpubus.thirdPartyImage" -}}
{{- include "gpubus.pinned" (dict "root" .root "repository" .image.repository "tag" .image.tag "digest" .image.digest) -}}
{{- end -}}

{{- define "gpubus.pullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The settings of every group that runs, by name, as JSON. Where we only watch that is who reads, answers and records. */}}
{{- define "gpubus.groups" -}}
{{- $all := include "gpubus.allGroups" . | fromJson -}}
{{- if not .Values.migration.passive -}}
{{- toJson $all -}}
{{- else -}}
{{- $groups := dict -}}
{{- range $name, $group := $all }}
{{- $roles := list -}}
{{- range $group.roles }}{{ if has . (list "watcher" "inspector" "gateway" "mutator" "authenticator" "recorder") }}{{ $roles = append $roles . }}{{ end }}{{ end -}}
{{- if $roles }}{{ $_ := set $groups $name (set $group "roles" $roles) }}{{ end -}}
{{- end }}
{{- toJson $groups -}}
{{- end -}}
{{- end -}}

{{/* The settings of every group, by name, as JSON: those of values with what they leave out. The bus knows all of them. */}}
{{- define "gpubus.allGroups" -}}
{{- $groups := dict -}}
{{- $all := dict "controller" .Values.controller "scheduler" .Values.scheduler "webhook" .Values.webhook "monitor" .Values.monitor -}}
{{- range $name, $extra := .Values.groups }}
{{- if hasKey $all $name }}{{ fail (printf "groups.%s: %s is a group of its own, set it under %s" $name $name $name) }}{{ end }}
{{- $_ := set $all $name $extra }}
{{- end }}
{{- range $name, $given := $all }}
{{- $group := deepCopy $.Values.groupDefaults -}}
{{- range $key, $value := $given }}
{{- if and (eq $key "resources") (kindIs "map" $value) }}{{ $value = mergeOverwrite (deepCopy $group.resources) $value }}{{ end -}}
{{- $_ := set $group $key $value }}
{{- end }}
{{- $roles := $group.roles | default list -}}
{{- if eq (toString $group.enabled) "false" }}{{ $roles = list }}{{ end -}}
{{- if and $.Values.controller.nvidiaOperatorProgressiveMigration (eq $name "controller") }}{{ $roles = append $roles "tainter" }}{{ end -}}
{{- if not (include "gpubus.metricsURL" $) }}{{ $roles = without $roles "recorder" "alerter" }}{{ end -}}
{{- if not (include "gpubus.command" $ | fromJson).scaling }}{{ $roles = without $roles "scaler" }}{{ end -}}
{{- if or (not $.Values.bus.auth.enabled) (and $.Values.bus.external.urls (not $.Values.bus.external.callout)) }}{{ $roles = without $roles "authenticator" }}{{ end -}}
{{- if not (include "gpubus.alertmanagers" $) }}{{ $roles = without $roles "notifier" }}{{ end -}}
{{- if not (include "gpubus.alerting" $) }}{{ $roles = without $roles "alerter" "notifier" }}{{ end -}}
{{- if $roles }}
{{- $_ := set $group "roles" $roles }}
{{- $_ := set $group "replicas" (include "gpubus.replicas" $group | int) }}
{{- $_ := set $groups $name $group }}
{{- end }}
{{- end }}
{{- toJson $groups -}}
{{- end -}}

{{/* TensorFusion's chart says replicaCount, HAMi's replicas: either. */}}
{{- define "gpubus.replicas" -}}
{{- if not (kindIs "invalid" .replicas) }}{{ .replicas }}{{ else if not (kindIs "invalid" .replicaCount) }}{{ .replicaCount }}{{ else }}1{{ end -}}
{{- end -}}

{{/* The group whose gateway takes admission reviews: the webhook's, or else the first that has one. */}}
{{- define "gpubus.admissionGroup" -}}
{{- $groups := include "gpubus.groups" . | fromJson -}}
{{- $found := list -}}
{{- range $name := concat (list "webhook") (keys $groups | sortAlpha) }}
{{- if and (hasKey $groups $name) (has "gateway" (get $groups $name).roles) }}{{ $found = append $found $name }}{{ end -}}
{{- end -}}
{{- first $found -}}
{{- end -}}

{{/* Flags of TensorFusion's controller.command that mean something here. Anything else is refused rather than ignored. */}}
{{- define "gpubus.command" -}}
{{- $command := dict "alerting" true "scaling" true "address" "" -}}
{{- if .Values.controller.command }}
{{- $words := list }}
{{- range .Values.controller.command }}{{ $words = concat $words (splitList "=" (toString .)) }}{{ end }}
{{- $_ := set $command "alerting" (or (has "-enable-alert" $words) (has "--enable-alert" $words)) }}
{{- $_ := set $command "scaling" (or (has "-enable-auto-scale" $words) (has "--enable-auto-scale" $words)) }}
{{- $expect := "" }}
{{- range $words }}
{{- $flag := trimAll "-" . }}
{{- if $expect }}
{{- if eq $expect "alert-manager-addr" }}{{ $_ := set $command "address" . }}{{ end }}
{{- $expect = "" }}
{{- else if eq . "/manager" }}
{{- else if and (hasPrefix "-" .) (has $flag (list "alert-manager-addr" "metrics-bind-address")) }}{{ $expect = $flag }}
{{- else if and (hasPrefix "-" .) (has $flag (list "leader-elect" "enable-alert" "enable-auto-scale" "enable-auto-expander")) }}
{{- else }}
{{- fail (printf "controller.command has %q: of TensorFusion's flags -alert-manager-addr, -enable-alert, -leader-elect, -metrics-bind-address, -enable-auto-scale and -enable-auto-expander are understood; set others under controller in values" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $command -}}
{{- end -}}

{{/* Non-empty where alert rules are evaluated. */}}
{{- define "gpubus.alerting" -}}
{{- if (include "gpubus.command" . | fromJson).alerting }}yes{{ end -}}
{{- end -}}

{{/* Addresses of all Alertmanagers, by commas; empty where there is none. */}}
{{- define "gpubus.alertmanagers" -}}
{{- $address := (include "gpubus.command" . | fromJson).address -}}
{{- $name := include "gpubus.fullname" . -}}
{{- if $address -}}
{{- range splitList "," $address }}
{{- if not (regexMatch "^https?://[^/ ]+" .) }}{{ fail (printf "controller.command: -alert-manager-addr is %q: begin it with http:// or https://" .) }}{{ end }}
{{- end -}}
{{- $address -}}
{{- else if .Values.alert.enabled -}}
{{- $addresses := list -}}
{{- range $index := until (int .Values.alert.replicaCount) }}
{{- $addresses = append $addresses (printf "http://%s-alert-manager-%d.%s-alert-manager-headless.%s.svc:9093" $name $index $name $.Release.Namespace) }}
{{- end -}}
{{- join "," $addresses -}}
{{- end -}}
{{- end -}}

{{/* Where metrics are kept, without the login; empty where nowhere. TensorFusion's greptime.port is that of MySQL: HTTP is at httpPort. */}}
{{- define "gpubus.metricsURL" -}}
{{- $g := .Values.greptime -}}
{{- $host := $g.host -}}
{{- if and (not $host) $g.installStandalone }}{{ $host = printf "%s-greptimedb.%s.svc" (include "gpubus.fullname" .) .Release.Namespace }}{{ end -}}
{{- if regexMatch "[:/]" $host }}{{ fail (printf "greptime.host is %q: write the name alone, its port at greptime.httpPort, and greptime.isCloud for https" $host) }}{{ end -}}
{{- if $host -}}
{{- if and $g.isCloud (not (or $g.existingSecret (and $g.user $g.password))) }}{{ fail "greptime.isCloud needs greptime.existingSecret with the keys user and password, or greptime.user and greptime.password" }}{{ end -}}
{{- printf "%s://%s:%d/%s" (ternary "greptimes" "greptime" $g.isCloud) $host (int ($g.httpPort | default (ternary 443 4000 $g.isCloud))) $g.db -}}
{{- end -}}
{{- end -}}

{{- define "gpubus.metricsSecret" -}}
{{- if .Values.greptime.existingSecret }}{{ .Values.greptime.existingSecret }}{{ else if .Values.greptime.user }}{{ include "gpubus.fullname" . }}-greptime{{ end -}}
{{- end -}}

{{/* The bus. */}}
{{- define "gpubus.busURLs" -}}
{{- if .Values.bus.external.urls -}}
{{- join "," .Values.bus.external.urls -}}
{{- else -}}
{{- $name := include "gpubus.fullname" . -}}
{{- $urls := list -}}
{{- range $index := until (int .Values.bus.replicas) }}
{{- $urls = append $urls (printf "%s://%s-nats-%d.%s-nats-headless.%s.svc:4222" (ternary "tls" "nats" $.Values.bus.tls.enabled) $name $index $name $.Release.Namespace) }}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}
{{- end -}}

{{/* How many bytes a size means, to Kubernetes or to NATS, which takes GB for GiB. */}}
{{- define "gpubus.bytes" -}}
{{- if not (kindIs "string" .) -}}
{{- printf "%.0f" (float64 .) -}}
{{- else -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- $times := 1.0 -}}
{{- range $power, $letter := list "K" "M" "G" "T" "P" -}}
{{- if eq (upper $unit) $letter }}{{ range until (int (add1 $power)) }}{{ $times = mulf $times 1000.0 }}{{ end }}{{ end -}}
{{- if has (upper $unit) (list (print $letter "I") (print $letter "B") (print $letter "IB")) }}{{ range until (int (add1 $power)) }}{{ $times = mulf $times 1024.0 }}{{ end }}{{ end -}}
{{- end -}}
{{- printf "%.0f" (mulf (float64 (trimSuffix $unit .)) $times) -}}
{{- end -}}
{{- end -}}

{{/* A NATS of somebody else's has to be told who we are: nobody makes Secrets for it. */}}
{{- define "gpubus.checkBus" -}}
{{- $bus := .Values.bus -}}
{{- $external := not (empty $bus.external.urls) -}}
{{- if and $external $bus.tls.enabled (not $bus.tls.existingSecret) }}{{ fail "bus.external.urls needs bus.tls.existingSecret, a Secret with ca.crt, the authority of that NATS; or bus.tls.enabled: false" }}{{ end -}}
{{- if and $external $bus.auth.enabled (not $bus.auth.existingSecret) -}}
{{- $keys := append (keys (include "gpubus.allGroups" . | fromJson) | sortAlpha) (ternary "callout-seed" "agent" $bus.external.callout) -}}
{{- fail (printf "bus.external.urls needs bus.auth.existingSecret, a Secret with the keys %s; or bus.auth.enabled: false" (join ", " $keys)) -}}
{{- end -}}
{{- if and $bus.external.callout (not (and $external $bus.auth.enabled)) }}{{ fail "bus.external.callout needs bus.external.urls and bus.auth.enabled: the chart's own NATS has it anyway" }}{{ end -}}
{{- if and (not $external) (gt (int $bus.streamReplicas) (int $bus.replicas)) }}{{ fail (printf "bus.streamReplicas is %d: so many copies need as many servers, and bus.replicas is %d" (int $bus.streamReplicas) (int $bus.replicas)) }}{{ end -}}
{{- if and (not $external) (gt (include "gpubus.bytes" $bus.jetstream.maxFile | float64) (include "gpubus.bytes" $bus.persistence.size | float64)) }}{{ fail (printf "bus.jetstream.maxFile is %s: the volume of bus.persistence.size, %v, holds less" $bus.jetstream.maxFile $bus.persistence.size) }}{{ end -}}
{{- end -}}

{{/* Agents show a token where the bus asks us whose it is, and elsewhere a password. */}}
{{- define "gpubus.agentsShowTokens" -}}
{{- if or (not .Values.bus.external.urls) .Values.bus.external.callout }}yes{{ end -}}
{{- end -}}

{{- define "gpubus.streamReplicas" -}}
{{- if .Values.bus.streamReplicas }}{{ .Values.bus.streamReplicas }}{{ else if or .Values.bus.external.urls (ge (int .Values.bus.replicas) 3) }}3{{ else }}1{{ end -}}
{{- end -}}

{{/* What the bus is shown by a part: (dict "root" $ "part" "controller"). Environment, mounts and volumes. */}}
{{- define "gpubus.busEnv" -}}
- name: GPUBUS_NATS
  value: {{ include "gpubus.busURLs" .root | quote }}
{{- if .root.Values.bus.tls.enabled }}
- name: GPUBUS_NATS_CA
  value: /etc/gpubus/bus-ca/ca.crt
{{- end }}
{{- if .root.Values.bus.auth.enabled }}
- name: GPUBUS_NATS_USER
  {{- if and (eq .part "agent") (include "gpubus.agentsShowTokens" .root) }}
  value: agent/$(NODE_NAME)
  {{- else }}
  value: {{ .part }}
  {{- end }}
- name: GPUBUS_NATS_PASSWORD_FILE
  value: /etc/gpubus/bus-login/password
{{- end }}
{{- end -}}

{{- define "gpubus.busMounts" -}}
{{- if .root.Values.bus.tls.enabled }}
- name: bus-ca
  mountPath: /etc/gpubus/bus-ca
  readOnly: true
{{- end }}
{{- if .root.Values.bus.auth.enabled }}
- name: bus-login
  mountPath: /etc/gpubus/bus-login
  readOnly: true
{{- end }}
{{- end -}}

{{- define "gpubus.busVolumes" -}}
{{- if .root.Values.bus.tls.enabled }}
- name: bus-ca
  secret:
    secretName: {{ include "gpubus.busTLSSecret" .root }}
    items:
      - key: ca.crt
        path: ca.crt
{{- end }}
{{- if .root.Values.bus.auth.enabled }}
- name: bus-login
{{- if and (eq .part "agent") (include "gpubus.agentsShowTokens" .root) }}
  # The API server says which node the pod that holds this token runs on; the bus lets it speak for no other.
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ include "gpubus.busAudience" .root }}
          expirationSeconds: 3600
          path: password
{{- else }}
  secret:
    secretName: {{ include "gpubus.busAuthSecret" .root }}
    items:
      - key: {{ .part }}
        path: password
{{- end }}
{{- end }}
{{- end -}}

{{- define "gpubus.busAudience" -}}gpubus-bus{{- end -}}

{{- define "gpubus.busTLSSecret" -}}
{{- .Values.bus.tls.existingSecret | default (printf "%s-nats-tls" (include "gpubus.fullname" .)) -}}
{{- end -}}

{{- define "gpubus.busAuthSecret" -}}
{{- .Values.bus.auth.existingSecret | default (printf "%s-nats-auth" (include "gpubus.fullname" .)) -}}
{{- end -}}

{{- define "gpubus.webhookTLSSecret" -}}
{{- .Values.webhook.existingSecret | default (printf "%s-webhook-tls" (include "gpubus.fullname" .)) -}}
{{- end -}}

{{/* Who signs: certManager, issuer or existing. */}}
{{- define "gpubus.webhookSigner" -}}
{{- if .Values.webhook.existingSecret }}existing{{ else if .Values.webhook.certManager.enabled }}certManager{{ else }}issuer{{ end -}}
{{- end -}}

{{- define "gpubus.busSigner" -}}
{{- if not .Values.bus.tls.enabled }}none{{ else if .Values.bus.tls.existingSecret }}existing{{ else if or .Values.bus.tls.certManager .Values.webhook.certManager.enabled }}certManager{{ else }}issuer{{ end -}}
{{- end -}}

{{/* The name in kube-scheduler's certificate. */}}
{{- define "gpubus.schedulerClient" -}}
{{- printf "%s-kube-scheduler.%s.svc" (include "gpubus.fullname" .) .Release.Namespace -}}
{{- end -}}

{{/* Whether kube-scheduler has a certificate of its own: where the webhook's Secret is somebody else's it shows that one. */}}
{{- define "gpubus.schedulerHasOwn" -}}
{{- ne "existing" (include "gpubus.webhookSigner" .) -}}
{{- end -}}

{{/* Whether NATS has to be told of a renewal: our own issuer restarts it instead, server by server. */}}
{{- define "gpubus.busReloads" -}}
{{- has (include "gpubus.busSigner" .) (list "certManager" "existing") -}}
{{- end -}}

{{/* Spread over nodes unless an affinity is stated: (dict "root" $ "part" … "affinity" …). */}}
{{- define "gpubus.affinity" -}}
{{- if .affinity }}
{{- toYaml .affinity }}
{{- else }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "gpubus.selector" . | nindent 12 }}
{{- end }}
{{- end -}}

{{/* How a Deployment's pods are replaced: (dict "affinity" … "group" <with replicas, updateStrategy>). Where others go on working, or a
     pod may not share a node with another, one ends before the next begins: a pod beyond the replicas would find no node. */}}
{{- define "gpubus.updateStrategy" -}}
{{- $required := dig "podAntiAffinity" "requiredDuringSchedulingIgnoredDuringExecution" list (.affinity | default dict) -}}
{{- $spread := false -}}
{{- range .group.topologySpreadConstraints | default list }}{{ if eq "DoNotSchedule" (.whenUnsatisfiable | default "DoNotSchedule") }}{{ $spread = true }}{{ end }}{{ end -}}
{{- if .group.updateStrategy -}}
{{- toYaml .group.updateStrategy -}}
{{- else -}}
type: RollingUpdate
rollingUpdate:
{{- if or $required $spread (gt (int .group.replicas) 1) }}
  maxUnavailable: 1
  maxSurge: 0
{{- else }}
  maxUnavailable: 0
  maxSurge: 1
{{- end }}
{{- end -}}
{{- end -}}

{{- define "gpubus.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "gpubus.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The documents of a file of manifests, as JSON {"items": […]}. */}}
{{- define "gpubus.documents" -}}
{{- $items := list -}}
{{- range regexSplit "(?m)^---$" (.root.Files.Get .file) -1 }}
{{- $document := fromYaml . -}}
{{- if $document.kind }}{{ $items = append $items $document }}{{ end -}}
{{- end -}}
{{- toJson (dict "items" $items) -}}
{{- end -}}

{{/* Non-empty where a group has a role that speaks to the API server: (dict "root" $ "group" <group>). */}}
{{- define "gpubus.speaksToAPI" -}}
{{- range .group.roles }}{{ if has . (include "gpubus.rbacRoles" $.root | fromJsonArray) }}yes{{ end }}{{ end -}}
{{- /* Gateways ask whose a token is where they tell clients of remote workers where those are. */}}
{{- if and .root.Values.webhook.connections.enabled (eq .part (include "gpubus.admissionGroup" .root)) }}yes{{ end -}}
{{- end -}}

{{- define "gpubus.rbacRoles" -}}
{{- $roles := list -}}
{{- range (include "gpubus.documents" (dict "root" . "file" "files/rbac/accounts.yaml") | fromJson).items }}
{{- if eq .kind "ServiceAccount" }}{{ $roles = append $roles (trimPrefix "gpubus-" .metadata.name) }}{{ end -}}
{{- end -}}
{{- toJson (without $roles "gateway") -}}
{{- end -}}
