//! ebbtide: the cluster-autoscaler cloud provider for EC2 Auto Scaling groups that drains every node before it goes.
//!
//! ```text
//!  cluster-autoscaler ── gRPC/mTLS ──▶ provider ── reads ──▶ groups::Groups ◀── groups::discovery ◀── AWS
//!                                         │ writes a record                        │ finds Terminating:Wait
//!                                         ▼                                        ▼
//!                               Node annotation = the durable record of a scale-in ◀── SQS notices, a person
//!                                         │ watched (cluster)
//!                                         ▼
//!                     scale_in::controller ──▶ plan (pure) ──▶ actions ──▶ eviction API · ASG · lifecycle hook
//! ```
//!
//! What the layout keeps apart:
//! - Decisions are functions of (what is known, now) that return data: [`scale_in::plan`], [`groups::sizes`],
//!   [`template`], [`provider::deletion`]. Clocks, networks and tasks live around them.
//! - RPCs read memory and write records; none drains. Those that change a size wait for AWS. So do the first ones after
//!   cluster-autoscaler used another replica, 3 s at most.
//! - State lives where it survives us: in AWS (desired capacity, lifecycle state, the tag on an instance that is
//!   protected for a moment) and on the Node (annotation). The program can be killed at any instruction and started
//!   again elsewhere. What real Nodes have taught about templates is kept in a ConfigMap, and can be lost without harm.
//! - Work is found by looking at Nodes and groups. Messages only speed that up, except for what AWS announces nowhere else (spot
//!   interruptions, maintenance).
//! - [`aws`] and [`cluster`] are thin adapters. [`sim`] has worlds that answer the same requests; what differs is the
//!   endpoint, never the code.
//! - [`app`] puts it together, [`config`] reads the flags, [`admin`], [`commands`] and [`telemetry`] let people look in.
//!
//! The layers, as the floors of a house. A room imports only from floors below its own, except that `main` imports `sim`, `app` and
//! `commands` import `config`, and `dry_run` imports `clock`. Outside `sim`, files of a room never need each other in a circle.
//! `tests/floors` checks every import against this table.
//!
//! | floor | rooms | what they are for |
//! | --- | --- | --- |
//! | 8 | `main`, `sim` | the command line; the simulated worlds (feature `simulate`) |
//! | 7 | `app`, `commands`, `config` | the program put together from the flags that `config` reads; commands for people |
//! | 6 | `provider`, `admin` | what cluster-autoscaler calls; what kubelet, Prometheus and people read |
//! | 5 | `scale_in`, `prices` | how a node leaves; what nodes and pods cost |
//! | 4 | `groups` | discovery, snapshot, sizes, protection, failed launches, lifecycle hooks |
//! | 3 | `template` | what a node that is not there yet will be like |
//! | 2 | `aws`, `cluster` | thin adapters: calls, and the data they return |
//! | 1 | `k8s`, `clock`, `telemetry`, `slots`, `dry_run`, `words` | names and quantities, time, logs, bounded waiting rooms, what a dry run would have done, enums that have a spelling |

pub mod admin;
pub mod app;
pub mod aws;
pub mod clock;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod dry_run;
pub mod groups;
pub mod k8s;
pub mod prices;
pub mod provider;
pub mod scale_in;
#[cfg(feature = "simulate")]
pub mod sim;
pub mod slots;
pub mod telemetry;
pub mod template;
mod words;
