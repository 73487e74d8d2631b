variable "cluster_name" {
  description = "Name of the cluster."
  type        = string
}

variable "name" {
  description = "Name of the role and the queue, and beginning of the names of the rest: 54 letters, digits, - and _ at most, beginning with ebbtide. By default ebbtide-CLUSTER, with dashes for dots. To be set where that is too long."
  type        = string
  default     = null

  validation {
    condition     = var.name == null || startswith(coalesce(var.name, "-"), "ebbtide")
    error_message = "The name has to begin with ebbtide, as the queues do that the policy allows."
  }
}

variable "namespace" {
  description = "Namespace of ebbtide's service account."
  type        = string
  default     = "kube-system"
}

variable "service_account" {
  description = "Name of ebbtide's service account."
  type        = string
  default     = "ebbtide"
}

variable "pod_identity" {
  description = "Whether pods get the role by EKS Pod Identity: the cluster needs the add-on eks-pod-identity-agent. By default unless oidc_provider_arn or role_name is set: where there is an association, EKS gives pods no web identity. To be set where that ARN is not known when Terraform plans."
  type        = bool
  default     = null
}

variable "oidc_provider_arn" {
  description = "ARN of the cluster's OIDC provider, for a role for the service account (IRSA)."
  type        = string
  default     = null
}

variable "role_name" {
  description = "Name of a role that is there already and gets the rights, like that of the instances that ebbtide's pods run on. Then no role and no association are made, and no EKS is needed. Has to be known when Terraform plans."
  type        = string
  default     = null
}

variable "group_tag" {
  description = "Tag, with any value, of the groups that ebbtide may change. By default the one that names the cluster."
  type        = string
  default     = null
}

variable "manage_lifecycle_hooks" {
  description = "For --manage-lifecycle-hooks: whether ebbtide may put its hook on the groups (on), and set their lifecycle policy (retain)."
  type        = string
  default     = "off"

  validation {
    condition     = contains(["off", "on", "retain"], var.manage_lifecycle_hooks)
    error_message = "One of off, on, retain."
  }
}

variable "wait_for_load_balancers" {
  description = "For --wait-for-load-balancers: whether ebbtide may look at target groups."
  type        = bool
  default     = false
}

variable "prices" {
  description = "For --prices=aws: whether ebbtide may read prices."
  type        = bool
  default     = false
}

variable "hooked_groups" {
  description = "Names of groups that get the lifecycle hook here, in place of --manage-lifecycle-hooks."
  type        = set(string)
  default     = []
}

variable "hook_heartbeat" {
  description = "Heartbeat time-out of these hooks, in seconds: how long an instance is held while no ebbtide runs."
  type        = number
  default     = 300
}

variable "hook_default_result" {
  description = "What becomes of an instance whose hook times out: CONTINUE ends it. ABANDON too, unless the group's lifecycle policy retains it."
  type        = string
  default     = "CONTINUE"

  validation {
    condition     = contains(["CONTINUE", "ABANDON"], var.hook_default_result)
    error_message = "CONTINUE or ABANDON."
  }
}

variable "tags" {
  description = "Tags of everything that can have some."
  type        = map(string)
  default     = {}
}
