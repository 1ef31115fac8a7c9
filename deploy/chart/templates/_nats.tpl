{{/* Who logs in to the bus with a password: the groups, and an administrator for people. Agents show a token instead. */}}
{{- define "gpubus.busUsers" -}}
{{- $users := list -}}
{{- range $part := concat (keys (include "gpubus.allGroups" . | fromJson) | sortAlpha) (list "admin") }}
{{- $users = append $users (dict "key" $part "env" (printf "GPUBUS_PASSWORD_%s" (upper (replace "-" "_" $part)))) }}
{{- end -}}
{{- toJson $users -}}
{{- end -}}

{{/* One account with the streams: who is in it may say what its roles are the authors of, and nothing else. */}}
{{- define "gpubus.natsAccounts" -}}
{{- $table := .Files.Get "files/bus-permissions.yaml" | fromYaml -}}
{{- $groups := include "gpubus.allGroups" . | fromJson -}}
accounts {
  {{ $table.account }} {
    jetstream: enabled
    users: [
      {{- range include "gpubus.busUsers" . | fromJsonArray }}
      {
        user: {{ .key }}
        password: ${{ .env }}
        {{- if hasKey $groups .key }}
        {{- $inbox := printf "_INBOX.%s.>" .key }}
        {{- $publish := concat (list $inbox) $table.shared }}
        {{- $subscribe := list $inbox }}
        {{- range (get $groups .key).roles }}
        {{- with get $table.roles . }}
        {{- $publish = concat $publish .publish }}
        {{- $subscribe = concat $subscribe .subscribe }}
        {{- end }}
        {{- end }}
        permissions: {
          publish: { allow: {{ uniq $publish | toJson | replace "\\u003e" ">" }} }
          subscribe: { allow: {{ uniq $subscribe | toJson | replace "\\u003e" ">" }} }
          allow_responses: { max: 1000, expires: "2m" }
        }
        {{- end }}
      }
      {{- end }}
    ]
  }
  SYS { }
}
system_account: SYS
# Everybody else is an agent: an authenticator asks the API server which node its token is of.
authorization {
  auth_callout {
    issuer: $GPUBUS_CALLOUT_ISSUER
    account: {{ $table.account }}
    auth_users: [{{ range $index, $user := include "gpubus.busUsers" . | fromJsonArray }}{{ if $index }}, {{ end }}{{ $user.key }}{{ end }}]
  }
}
{{- end -}}
