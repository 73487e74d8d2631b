//! Thin adapters to EC2 Auto Scaling and EC2.
