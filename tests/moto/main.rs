//! The AWS adapter, queues, EventBridge's rules, load balancers, discovery and the size RPCs against moto's server, an independent emulator of AWS.
//!
//! `tests/moto.sh` starts one and runs these; `EBBTIDE_MOTO_ENDPOINT` says where it is. Each test has groups of its own.
//! Where moto (5.2.5) is not like AWS's documentation, the program stays as the documentation has it. moto does not
//! - refuse a size outside the limits, or a termination below the minimum;
//! - say `ValidationError` for a group or instance that it does not know: it answers with status 500;
//! - know RecordLifecycleActionHeartbeat or CompleteLifecycleAction, or let a hook hold an instance;
//! - have any scaling activity, or a Price List;
//! - know DescribeInstances' filter of Capacity Reservations: it answers with status 500;
//! - page launch template versions: it cuts the answer off at MaxResults;
//! - take time: instances are in service when the call that wanted them returns.

mod account;
mod adapter;
mod compare;
mod eks;
mod events;
mod load_balancers;
mod prices;
mod queues;
mod rpcs;
