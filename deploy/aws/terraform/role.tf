# What ebbtide may do at AWS (docs/security.md): the files in deploy/aws/iam.

locals {
  group_tag = coalesce(var.group_tag, "k8s.io/cluster-autoscaler/${var.cluster_name}")

  policies = setunion(
    ["hooks", "queue", "read", "size"],
    var.manage_lifecycle_hooks == "off" ? [] : ["manage-hooks"],
    var.manage_lifecycle_hooks == "retain" ? ["retention"] : [],
    var.wait_for_load_balancers ? ["load-balancers"] : [],
    var.prices ? ["prices"] : [],
  )

  role          = coalesce(var.role_name, one(aws_iam_role.ebbtide[*].name))
  pod_identity  = coalesce(var.pod_identity, var.oidc_provider_arn == null && var.role_name == null)
  oidc_provider = var.oidc_provider_arn == null ? "" : split("oidc-provider/", var.oidc_provider_arn)[1]

  trust_of_pod_identity = {
    Sid       = "PodIdentity"
    Effect    = "Allow"
    Principal = { Service = "pods.eks.amazonaws.com" }
    Action    = ["sts:AssumeRole", "sts:TagSession"]
    Condition = {
      StringEquals = {
        "aws:RequestTag/eks-cluster-name"           = var.cluster_name
        "aws:RequestTag/kubernetes-namespace"       = var.namespace
        "aws:RequestTag/kubernetes-service-account" = var.service_account
      }
    }
  }

  trust_of_the_service_account = {
    Sid       = "ServiceAccount"
    Effect    = "Allow"
    Principal = { Federated = coalesce(var.oidc_provider_arn, "-") }
    Action    = ["sts:AssumeRoleWithWebIdentity"]
    Condition = {
      StringEquals = {
        "${local.oidc_provider}:aud" = "sts.amazonaws.com"
        "${local.oidc_provider}:sub" = "system:serviceaccount:${var.namespace}:${var.service_account}"
      }
    }
  }
}

resource "aws_iam_role" "ebbtide" {
  count = var.role_name == null ? 1 : 0

  name        = local.name
  description = "ebbtide in the cluster ${var.cluster_name}"
  tags        = var.tags

  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for statement in [local.trust_of_pod_identity] : statement if local.pod_identity],
      [for statement in [local.trust_of_the_service_account] : statement if var.oidc_provider_arn != null],
    )
  })

  lifecycle {
    precondition {
      condition     = local.pod_identity || var.oidc_provider_arn != null
      error_message = "Nobody could assume the role: set pod_identity, oidc_provider_arn, or role_name for one that is there already."
    }
  }
}

# The files name the tag that the groups of all clusters have, and all queues that are called ebbtide: here it is this cluster's
# tag and this queue. A role that is there already may have policies of others, so these are named after the cluster.
resource "aws_iam_role_policy" "ebbtide" {
  for_each = local.policies

  name = "${local.name}-${each.key}"
  role = local.role

  policy = replace(
    replace(
      file("${path.module}/../iam/${each.key}.json"),
      "k8s.io/cluster-autoscaler/enabled",
      local.group_tag,
    ),
    "arn:*:sqs:*:*:ebbtide*",
    aws_sqs_queue.notices.arn,
  )
}

resource "aws_eks_pod_identity_association" "ebbtide" {
  count = local.pod_identity ? 1 : 0

  cluster_name    = var.cluster_name
  namespace       = var.namespace
  service_account = var.service_account
  role_arn        = one(aws_iam_role.ebbtide[*].arn)
  tags            = var.tags
}
