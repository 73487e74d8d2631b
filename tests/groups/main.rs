//! Discovery, sizes and templates as cluster-autoscaler meets them: the whole program on the simulated worlds.

mod batches;
mod budget;
mod eks;
mod faults;
mod learned;
mod restart;
mod scene;
mod shapes;
mod sizes;
