output "queue_url" {
  description = "For --queue-url, or queueUrls of the chart."
  value       = aws_sqs_queue.notices.url
}

output "role_arn" {
  description = "For the annotation eks.amazonaws.com/role-arn of the service account. EKS Pod Identity needs none. null with role_name."
  value       = one(aws_iam_role.ebbtide[*].arn)

  precondition {
    condition     = var.role_name == null || !local.pod_identity && var.oidc_provider_arn == null
    error_message = "The role role_name has a trust of its own: leave pod_identity and oidc_provider_arn out."
  }
}

output "dead_letters_arn" {
  description = "Of the queue that an alarm is worth having for: it is empty as long as all is well."
  value       = aws_sqs_queue.dead_letters.arn
}
