//! ebbtide: the cluster-autoscaler cloud provider for EC2 Auto Scaling groups that drains every node before it goes.

pub mod aws;
pub mod clock;
pub mod cluster;
pub mod groups;
pub mod scale_in;
pub mod sim;
pub mod template;
