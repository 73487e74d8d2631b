//! Durations of RPCs by RPC and code: `ebbtide_rpc_duration_seconds`; and the clients that were refused.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;
use tonic::Code;

use super::refusals::RefusedClients;

/// Reads take well under a millisecond; a client gives up after 5 s.
const BUCKETS: [f64; 9] = [0.000_1, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0];

/// The RPCs of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(missing_docs, reason = "each is named as in the protocol")]
pub enum Rpc {
    NodeGroups,
    NodeGroupForNode,
    PricingNodePrice,
    PricingPodPrice,
    GPULabel,
    GetAvailableGPUTypes,
    Cleanup,
    Refresh,
    NodeGroupTargetSize,
    NodeGroupIncreaseSize,
    NodeGroupDeleteNodes,
    NodeGroupDecreaseTargetSize,
    NodeGroupNodes,
    NodeGroupTemplateNodeInfo,
    NodeGroupGetOptions,
}

impl Rpc {
    /// Whether it changes sizes.
    pub fn changes(self) -> bool {
        matches!(
            self,
            Self::NodeGroupIncreaseSize | Self::NodeGroupDeleteNodes | Self::NodeGroupDecreaseTargetSize
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    rpc: Rpc,
    code: CodeLabel,
}

/// A gRPC code, spelled as in the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CodeLabel(Code);

impl EncodeLabelValue for CodeLabel {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        encoder.write_str(code_name(self.0))
    }
}

/// The name of a code in the [gRPC specification](https://grpc.io/docs/guides/status-codes/).
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Metrics of the RPCs.
#[derive(Clone, Debug)]
pub struct RpcMetrics {
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    pub(super) refusals: RefusedClients,
}

impl RpcMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let durations: Family<Labels, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(BUCKETS));
        registry.register_with_unit(
            "ebbtide_rpc_duration",
            "How long RPCs took, by RPC and gRPC code",
            Unit::Seconds,
            durations.clone(),
        );
        // Whether cluster-autoscaler has come shows by this one: a rate needs a zero before the first.
        drop(durations.get_or_create(&Labels { rpc: Rpc::Refresh, code: CodeLabel(Code::Ok) }));
        let refusals = RefusedClients::default();
        refusals.register(registry);
        Self { durations, refusals }
    }

    /// Starts to time a call. One that is dropped before its end (the client gave up) counts as cancelled.
    pub(super) fn start(&self, rpc: Rpc) -> Timed<'_> {
        Timed { metrics: self, rpc, code: Code::Cancelled, since: Instant::now() }
    }
}

/// A call under way; its end is recorded when this is dropped.
#[derive(Debug)]
pub(super) struct Timed<'a> {
    metrics: &'a RpcMetrics,
    rpc: Rpc,
    code: Code,
    since: Instant,
}

impl Timed<'_> {
    /// The call has ended with this code.
    pub(super) fn ends(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        let labels = Labels { rpc: self.rpc, code: CodeLabel(self.code) };
        self.metrics.durations.get_or_create(&labels).observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::captured;

    #[test]
    fn a_call_is_recorded_however_it_ends() {
        let text = captured::page(|registry| {
            let metrics = RpcMetrics::register(registry);
            metrics.start(Rpc::GPULabel).ends(Code::Ok);
            metrics.start(Rpc::NodeGroupDeleteNodes).ends(Code::FailedPrecondition);
            drop(metrics.start(Rpc::Refresh));
        });
        for labels in [
            r#"rpc="GPULabel",code="OK""#,
            r#"rpc="NodeGroupDeleteNodes",code="FAILED_PRECONDITION""#,
            r#"rpc="Refresh",code="CANCELLED""#,
        ] {
            assert!(text.contains(&format!("ebbtide_rpc_duration_seconds_count{{{labels}}} 1")), "{text}");
        }
    }
}
