# Notices: what AWS tells beforehand (docs/notices.md).

locals {
  # Queues have no dots in their names.
  name = coalesce(var.name, "ebbtide-${replace(var.cluster_name, ".", "-")}")

  # Rules of EventBridge match the whole account. Messages about instances that are not ours are left alone and lapse.
  notices = {
    lifecycle = {
      source      = ["aws.autoscaling"]
      detail-type = ["EC2 Instance-terminate Lifecycle Action"]
    }
    instances = {
      source = ["aws.ec2"]
      detail-type = [
        "EC2 Spot Instance Interruption Warning",
        "EC2 Instance Rebalance Recommendation",
        "EC2 Instance State-change Notification",
        "Capacity Block Expiration Warning",
        "Capacity Block Reservation Expiration Warning",
        "EC2 Capacity Reservation Instance Interruption Warning",
        "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
      ]
    }
    health = {
      source      = ["aws.health"]
      detail-type = ["AWS Health Event"]
      detail = {
        service           = ["EC2"]
        eventTypeCategory = ["scheduledChange"]
      }
    }
  }
}

resource "aws_sqs_queue" "notices" {
  name                      = local.name
  sqs_managed_sse_enabled   = true
  message_retention_seconds = 1209600
  tags                      = var.tags

  # A message about another's instance comes again until it has lapsed, ever more seldom the longer that takes: 500 times are normal.
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dead_letters.arn
    maxReceiveCount     = 1000
  })

  lifecycle {
    # The longest is a rule's, which ends in -lifecycle and has 64 characters at most.
    precondition {
      condition     = can(regex("^[0-9A-Za-z_-]{1,54}$", local.name))
      error_message = "Queue, rules and role cannot be called ${local.name}: set the variable name, to 54 letters, digits, - and _ at most."
    }
  }
}

# Empty as long as all is well.
resource "aws_sqs_queue" "dead_letters" {
  name                      = "${local.name}-dead-letters"
  sqs_managed_sse_enabled   = true
  message_retention_seconds = 1209600
  tags                      = var.tags
}

resource "aws_sqs_queue_redrive_allow_policy" "dead_letters" {
  queue_url = aws_sqs_queue.dead_letters.url

  redrive_allow_policy = jsonencode({
    redrivePermission = "byQueue"
    sourceQueueArns   = [aws_sqs_queue.notices.arn]
  })
}

# Whoever may write to the queue can have machines drained within two minutes.
resource "aws_sqs_queue_policy" "notices" {
  queue_url = aws_sqs_queue.notices.url

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "RulesOfEventBridge"
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.notices.arn
        Condition = {
          ArnEquals = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.notices : rule.arn] }
        }
      },
    ]
  })
}

resource "aws_cloudwatch_event_rule" "notices" {
  for_each = local.notices

  name          = "${local.name}-${each.key}"
  description   = "Notices for ebbtide in the cluster ${var.cluster_name}"
  event_pattern = jsonencode(each.value)
  tags          = var.tags
}

resource "aws_cloudwatch_event_target" "notices" {
  for_each = local.notices

  rule = aws_cloudwatch_event_rule.notices[each.key].name
  arn  = aws_sqs_queue.notices.arn
}
