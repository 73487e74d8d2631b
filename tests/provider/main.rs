//! The provider as cluster-autoscaler meets it: through gRPC, in memory, on paused time.

mod certificates;
mod deletions;
mod dialects;
mod prices;
mod reads;
mod sizes;
mod tls;
mod transport;
mod world;
