//! Discovery, sizes and templates as cluster-autoscaler meets them: the whole program on the simulated worlds.

mod autoscaler;
mod batches;
mod budget;
mod eks;
mod expander;
mod faults;
mod figures;
mod launch_templates;
mod learned;
mod left_out;
mod node;
mod prices;
mod protection;
mod refusals;
mod replicas;
mod restart;
mod scene;
mod shapes;
mod sizes;
mod templates;
mod waiting;
mod weights;
