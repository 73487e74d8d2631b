//! Simulated Kubernetes cluster.
