# The hook of groups that are there already. For a group that this code makes, put it into the group (initial_lifecycle_hook),
# and its lifecycle policy (instance_lifecycle_policy) too: that has no resource of its own (docs/lifecycle-hooks.md).
resource "aws_autoscaling_lifecycle_hook" "ebbtide" {
  for_each = var.hooked_groups

  name                   = "ebbtide"
  autoscaling_group_name = each.key
  lifecycle_transition   = "autoscaling:EC2_INSTANCE_TERMINATING"
  heartbeat_timeout      = var.hook_heartbeat
  default_result         = var.hook_default_result
}
