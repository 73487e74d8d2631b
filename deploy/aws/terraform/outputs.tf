output "queue_url" {
  description = "For --queue-url, or queueUrls of the chart."
  value       = aws_sqs_queue.notices.url
}

output "role_arn" {
  description = "For the annotation eks.amazonaws.com/role-arn of the service account. EKS Pod Identity needs none."
  value       = aws_iam_role.ebbtide.arn
}

output "dead_letters_arn" {
  description = "Of the queue that an alarm is worth having for: it is empty as long as all is well."
  value       = aws_sqs_queue.dead_letters.arn
}
