//! Simulated EC2 Auto Scaling.
