//! ebbtide: the cluster-autoscaler cloud provider for EC2 Auto Scaling groups that drains every node before it goes.

pub mod clock;
pub mod sim;
