{{- define "ebbtide.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* cluster-autoscaler's container, in mode sidecar. */}}
{{- define "ebbtide.clusterAutoscaler" -}}
{{- $image := .Values.clusterAutoscaler.image -}}
{{- if .Values.expander.enabled -}}
{{- range $flag := list "expander" "grpc-expander-url" "grpc-expander-cert" -}}
{{- if hasKey $.Values.clusterAutoscaler.extraArgs $flag -}}
{{- fail (printf "clusterAutoscaler.extraArgs.%s cannot be given with expander.enabled, which it would undo: use expander.next for what decides after ebbtide" $flag) -}}
{{- end -}}
{{- end -}}
{{- end -}}
- name: cluster-autoscaler
  image: {{ $image.repository }}:{{ required "clusterAutoscaler.image.tag has to be given: cluster-autoscaler of the cluster's own minor version, as in --set clusterAutoscaler.image.tag=v1.34.0" $image.tag }}
  imagePullPolicy: {{ $image.pullPolicy }}
  command: [./cluster-autoscaler]
  args:
    - --cloud-provider=externalgrpc
    - --cloud-config=/etc/cluster-autoscaler/cloud-config.yaml
    - --namespace={{ .Release.Namespace }}
    - --status-config-map-name={{ include "ebbtide.fullname" . }}-cluster-autoscaler-status
    # Else it evicts DaemonSet pods together with the workloads, before ebbtide has a say.
    - --daemonset-eviction-for-occupied-nodes=false
    # Else it cuts every grace period at ten minutes. AWS holds an instance for 48 h at most.
    - --max-graceful-termination-sec=172800
    {{- if not (hasKey .Values.clusterAutoscaler.extraArgs "max-drain-parallelism") }}
    # Else one pod that does not go keeps it from draining any other node for as long as that.
    - --max-drain-parallelism=10
    {{- end }}
    {{- if not (hasKey .Values.clusterAutoscaler.extraArgs "max-scale-down-parallelism") }}
    # Else ten long drains leave no room for any other node, an empty one included.
    - --max-scale-down-parallelism=20
    {{- end }}
    {{- if not (hasKey .Values.clusterAutoscaler.extraArgs "node-info-cache-expire-time") }}
    # Else it takes a group at zero for what its last node was until it is started again, whatever the launch template or a tag says.
    - --node-info-cache-expire-time=10m
    {{- end }}
    {{- if not (hasKey .Values.clusterAutoscaler.extraArgs "max-failing-time") }}
    # Else it leads on for a quarter of an hour beside an ebbtide that does not answer. The other replica's may.
    - --max-failing-time=5m
    {{- end }}
    {{- if .Values.expander.enabled }}
    - --expander=grpc,{{ .Values.expander.next }}
    - --grpc-expander-url=localhost:8087
    # What it trusts: the certificate itself, or its authority. Read at its start alone.
    - --grpc-expander-cert=/etc/ebbtide/expander-tls/tls.crt
    {{- end }}
    {{- include "ebbtide.flags" .Values.clusterAutoscaler.extraArgs | indent 4 }}
  ports:
    - name: ca-metrics
      containerPort: 8085
  livenessProbe:
    httpGet:
      path: /health-check
      port: ca-metrics
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- with .Values.clusterAutoscaler.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {{- include "ebbtide.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - name: run
      mountPath: /run/ebbtide
    - name: cloud-config
      mountPath: /etc/cluster-autoscaler
      readOnly: true
    {{- if .Values.expander.enabled }}
    - name: expander-tls
      mountPath: /etc/ebbtide/expander-tls/tls.crt
      subPath: tls.crt
      readOnly: true
    {{- end }}
{{- end -}}
