//! The 15 RPCs: each looks up what it needs in the snapshot and leaves the answer to [`answers`], [`options`], [`wire`]
//! or `changes`. Errors are given their code, logged and counted here, once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tonic::{Code, Request, Response, Status};

use super::failed_calls::{About, FailedCalls};
use super::figures::{Figure, Figures};
use super::metrics::{Rpc, RpcMetrics};
use super::placeholders::Placeholders;
use super::proto::cloud_provider_server::CloudProvider;
#[allow(clippy::wildcard_imports, reason = "a request and a response of every RPC")]
use super::proto::*;
use super::terminations::Terminations;
use super::visits::Visits;
use super::{RefusedClients, RpcError, Running, Sizing, answers, options, wire};
use crate::aws;
use crate::clock::Clock;
use crate::groups::{Group, Groups, Snapshot, sizes};
use crate::k8s::{GroupName, ProviderId};
use crate::prices::Prices;
use crate::scale_in::ScaleIns;
use crate::slots::Connection;
use crate::telemetry::{RateLimit, chain};
use crate::template::{self, TemplateError, devices};

/// The provider as cluster-autoscaler calls it. Its own state can be lost without harm, so any number of replicas may
/// answer.
pub struct Provider {
    pub(super) groups: Arc<Groups>,
    pub(super) scale_ins: Arc<dyn ScaleIns>,
    pub(super) sizing: Sizing,
    pub(super) running: Running,
    pub(super) clock: Clock,
    pub(super) placeholders: Arc<Placeholders>,
    pub(super) terminations: Terminations,
    pub(super) visits: Visits,
    figures: Figures,
    failed_calls: FailedCalls,
    pub(super) metrics: RpcMetrics,
    /// `None`: prices are not implemented.
    pub(super) prices: Option<Arc<Prices>>,
    /// Whether MaxNodeStartupTime may become 0.
    zero_startup_time: bool,
    startup_time: Once,
    dropped: Once,
    without_template: Mutex<BTreeMap<GroupName, RateLimit>>,
}

/// A group, and the view that it is of.
struct Seen {
    view: Arc<Snapshot>,
    group: Arc<Group>,
}

impl AsRef<Group> for Seen {
    fn as_ref(&self) -> &Group {
        &self.group
    }
}

/// A group of a view, or one that has just vanished from it.
fn group_in<'a>(view: &'a Snapshot, name: &str) -> Result<&'a Arc<Group>, RpcError> {
    view.last_seen(name).ok_or_else(|| RpcError::NoSuchGroup(name.to_owned()))
}

/// How often it is said why a group has no template.
const REMIND_EVERY: Duration = Duration::from_hours(1);

/// Something that is logged once.
#[derive(Debug, Default)]
struct Once(AtomicBool);

impl Once {
    fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl Provider {
    /// A provider of these groups. What goes on beyond its RPC does so in `running`.
    pub fn new(
        groups: Arc<Groups>,
        scale_ins: Arc<dyn ScaleIns>,
        sizing: Sizing,
        running: Running,
        clock: Clock,
        metrics: RpcMetrics,
    ) -> Self {
        let (placeholders, zero_startup_time) = (Arc::default(), false);
        let (startup_time, dropped) = (Once::default(), Once::default());
        Self {
            groups,
            scale_ins,
            sizing,
            running,
            clock,
            placeholders,
            terminations: Terminations::default(),
            visits: Visits::default(),
            figures: Figures::default(),
            failed_calls: FailedCalls::default(),
            metrics,
            prices: None,
            zero_startup_time,
            startup_time,
            dropped,
            without_template: Mutex::default(),
        }
    }

    /// Answers what nodes and pods cost.
    #[must_use]
    pub fn with_prices(mut self, prices: Option<Arc<Prices>>) -> Self {
        self.prices = prices;
        self
    }

    /// The names of what groups miss.
    pub fn placeholders(&self) -> Arc<Placeholders> {
        Arc::clone(&self.placeholders)
    }

    /// Counts clients that are refused.
    pub fn refused_clients(&self) -> RefusedClients {
        self.metrics.refusals.clone()
    }

    /// Answers with groups' own options even to clients whose MaxNodeStartupTime then becomes 0.
    #[must_use]
    pub fn with_zero_startup_time(mut self, accepted: bool) -> Self {
        self.zero_startup_time = accepted;
        self
    }

    /// The snapshot to answer from. An error if it is too old, or if the scale-ins under way are not known yet: sizes
    /// and states would be wrong without them.
    pub(super) fn view(&self) -> Result<Arc<Snapshot>, RpcError> {
        if !self.scale_ins.is_ready() {
            return Err(RpcError::NodesUnknown);
        }
        Ok(self.groups.fresh(self.clock.now())?)
    }

    /// The last snapshot, however old: whose an instance is does not age as sizes do.
    pub(super) fn known(&self) -> Result<Arc<Snapshot>, RpcError> {
        match self.groups.latest() {
            Some(view) if view.is_complete && self.scale_ins.is_ready() => Ok(view),
            _ => self.view(),
        }
    }

    /// A question about sizes is asked, perhaps in the middle of a loop that began at another process. Without a view to answer from, fails
    /// at once.
    async fn asked(&self, over: Option<Connection>) -> Result<(), RpcError> {
        self.view()?;
        self.visits.asked(over, &self.groups, &self.clock).await;
        Ok(())
    }

    /// A change is asked for, likewise.
    fn asked_to_change(&self, over: Option<Connection>) -> Result<(), RpcError> {
        self.known()?;
        self.visits.asked_to_change(over, &self.groups, &self.clock);
        Ok(())
    }

    /// A group, to be read. One that has just vanished is still found for a while: cluster-autoscaler has its name from
    /// the beginning of its loop, and an error would end the loop for all groups.
    fn seen(&self, name: &str) -> Result<Seen, RpcError> {
        let view = self.view()?;
        let group = Arc::clone(group_in(&view, name)?);
        Ok(Seen { view, group })
    }

    async fn answer<T>(
        &self,
        rpc: Rpc,
        about: About<'_>,
        work: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<Response<T>, Status> {
        let timed = self.metrics.start(rpc);
        match work.await {
            Ok(answer) => {
                timed.ends(Code::Ok);
                Ok(Response::new(answer))
            }
            Err(error) => {
                timed.ends(error.code());
                self.failed_calls.tell(rpc, about, &error);
                Err(error.into())
            }
        }
    }

    /// Also from a view that is too old for the rest: whose an instance is does not age as sizes do. cluster-autoscaler takes its taints off
    /// Nodes of groups once when it starts, before it refreshes anything, and not again if that was in an outage of AWS.
    ///
    /// Source: `cleanUpIfRequired` of its `core/static_autoscaler.go`.
    fn group_for_node(&self, node: Option<&NamedNode>) -> Result<NodeGroup, RpcError> {
        let view = match self.groups.latest() {
            Some(view) if self.scale_ins.is_ready() => view,
            _ => self.view()?,
        };
        let (name, provider_id) = node.map_or(("", ""), |node| (&node.name, &node.provider_id));
        let is_secondary = |id: &ProviderId| match id {
            ProviderId::Instance { instance, .. } => self.scale_ins.is_secondary(&name.into(), instance),
            ProviderId::Placeholder { .. } => false,
        };
        let owner = provider_id
            .parse::<ProviderId>()
            .ok()
            .filter(|provider_id| !is_secondary(provider_id))
            .and_then(|provider_id| answers::owner(&view, &provider_id, &*self.scale_ins));
        if owner.is_none() {
            tracing::debug!(provider_id, "a node that is not of our groups");
        }
        let told = |of: (&Group, _)| {
            let told = self.figure(&view, of.0).node_group.clone();
            answers::node_group_of_node(of, told, &*self.scale_ins)
        };
        Ok(owner.map(told).unwrap_or_default())
    }

    fn figure(&self, view: &Arc<Snapshot>, group: &Group) -> Arc<Figure> {
        let have_failed = self.groups.failed_launches().have_failed(&group.asg.name, self.clock.now());
        self.figures.of(view, group, have_failed, &*self.scale_ins)
    }

    fn instances(&self, name: &str) -> Result<NodeGroupNodesResponse, RpcError> {
        let now = self.clock.now();
        let (Seen { view, group }, missing) = self.placeholders.of(now, || self.seen(name))?;
        let can_be_given_up = if missing.is_empty() || self.placeholders.is_refused(&group.asg.name, now) {
            0
        } else {
            sizes::spare_missing(&group.asg, self.decrements(&group.asg.name))
        };
        let encoded = self.figure(&view, &group).instances(&group, &*self.scale_ins);
        let instances = answers::placeholders(&group, &missing, can_be_given_up).collect();
        Ok(NodeGroupNodesResponse { encoded, instances })
    }

    /// Whether an instance's end lowers the desired capacity: by a scale-in, or by a termination that AWS has not answered.
    pub(super) fn decrements<'a>(&'a self, group: &'a GroupName) -> impl Fn(&aws::Instance) -> bool + 'a {
        let unclear = self.terminations.unclear(self.clock.now());
        move |instance| unclear.contains(&instance.id) || self.scale_ins.is_to_decrement(group, instance)
    }

    /// The group's template, or a stand-in: while any group has neither a template nor a Node, cluster-autoscaler buys no node for any pod
    /// (1.30 ends its loop).
    ///
    /// Source: `coresMemoryTotal` in
    /// [`resource/manager.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.34.0/cluster-autoscaler/core/scaleup/resource/manager.go),
    /// up to 1.34: `No node info for: …`, before it looks at the size.
    fn template(&self, id: &str) -> Result<NodeGroupTemplateNodeInfoResponse, RpcError> {
        let view = self.view()?;
        let group = group_in(&view, id)?;
        if let Some(Ok(template)) = &group.template {
            self.without_template().remove(&group.asg.name);
            return Ok(wire::template(&template.encoded));
        }
        if self.figure(&view, group).target_size > 0 {
            if let Some(template) = &group.stand_in {
                return Ok(wire::template(&template.encoded));
            }
            if group.template.is_none() {
                // It comes within seconds; one without room would have nodes of other groups bought meanwhile for the same pods.
                return Err(RpcError::NoTemplateYet(id.to_owned()));
            }
        }
        if let Some(Err(error)) = &group.template {
            self.tell_why(&group.asg.name, error);
        }
        Ok(wire::template(&template::without_room(&group.asg.name)))
    }

    /// Groups of which the log says that they have no template.
    fn without_template(&self) -> MutexGuard<'_, BTreeMap<GroupName, RateLimit>> {
        self.without_template.lock()
    }

    /// Logs why a group has no template: cluster-autoscaler, given one without room, does not.
    fn tell_why(&self, group: &GroupName, error: &TemplateError) {
        let mut told = self.without_template();
        if let Ok(view) = self.view() {
            told.retain(|group, _| view.groups.contains_key(group));
        }
        if told.entry(group.clone()).or_default().allow(REMIND_EVERY).is_some() {
            tracing::warn!(
                %group,
                error = %chain(error),
                "the group has no template: cluster-autoscaler gets one that no pod fits on, and does not grow the group"
            );
        }
    }

    fn options(
        &self,
        request: &NodeGroupAutoscalingOptionsRequest,
    ) -> Result<Option<NodeGroupAutoscalingOptions>, RpcError> {
        let Seen { group, .. } = self.seen(&request.id)?;
        let defaults = request.defaults.as_ref();
        let answer = options::answer(&group.options, defaults, self.zero_startup_time);
        let has_own = !group.options.is_empty();
        let loses = has_own && defaults.is_some_and(options::loses_startup_time);
        if loses && self.startup_time.is_first() {
            if self.zero_startup_time {
                tracing::warn!(
                    group = %group.asg.name,
                    "groups with autoscaling options of their own have MaxNodeStartupTime 0 in this cluster-autoscaler, \
                     because its protocol does not carry it; --zero-node-startup-time accepts that"
                );
            } else {
                tracing::warn!(
                    group = %group.asg.name,
                    "the autoscaling options in this group's tags are ignored: with them this cluster-autoscaler would \
                     take MaxNodeStartupTime for 0, and nodes for broken while they boot; \
                     --zero-node-startup-time=true uses them all the same"
                );
            }
        }
        if answer.is_some() && defaults.is_some_and(options::may_drop_options) && self.dropped.is_first() {
            tracing::warn!(
                group = %group.asg.name,
                "this group has autoscaling options of its own: cluster-autoscaler 1.32 and older then take \
                 ignoreDaemonSetsUtilization and zeroOrMaxNodeScaling for false, whatever tags and flags say"
            );
        }
        Ok(answer)
    }
}

/// What a request came over.
fn connection<T>(request: &Request<T>) -> Option<Connection> {
    request.extensions().get().copied()
}

#[tonic::async_trait]
impl CloudProvider for Provider {
    async fn node_groups(
        &self,
        _: Request<NodeGroupsRequest>,
    ) -> Result<Response<NodeGroupsResponse>, Status> {
        self.answer(Rpc::NodeGroups, About::default(), async {
            let view = self.view()?;
            let node_groups =
                view.groups.values().map(|group| self.figure(&view, group).node_group.clone()).collect();
            Ok(NodeGroupsResponse { node_groups })
        })
        .await
    }

    async fn node_group_for_node(
        &self,
        request: Request<NodeGroupForNodeRequest>,
    ) -> Result<Response<NodeGroupForNodeResponse>, Status> {
        self.answer(Rpc::NodeGroupForNode, About::default(), async {
            let node_group = self.group_for_node(request.get_ref().node.as_ref())?;
            Ok(NodeGroupForNodeResponse { node_group: Some(node_group) })
        })
        .await
    }

    async fn pricing_node_price(
        &self,
        request: Request<PricingNodePriceRequest>,
    ) -> Result<Response<PricingNodePriceResponse>, Status> {
        let price = async { Ok(PricingNodePriceResponse { price: self.node_price(request.get_ref())? }) };
        self.answer(Rpc::PricingNodePrice, About::default(), price).await
    }

    async fn pricing_pod_price(
        &self,
        request: Request<PricingPodPriceRequest>,
    ) -> Result<Response<PricingPodPriceResponse>, Status> {
        let price = async { Ok(PricingPodPriceResponse { price: self.pod_price(request.get_ref())? }) };
        self.answer(Rpc::PricingPodPrice, About::default(), price).await
    }

    async fn gpu_label(&self, _: Request<GpuLabelRequest>) -> Result<Response<GpuLabelResponse>, Status> {
        self.answer(Rpc::GPULabel, About::default(), async {
            Ok(GpuLabelResponse { label: devices::LABEL.to_owned() })
        })
        .await
    }

    async fn get_available_gpu_types(
        &self,
        _: Request<GetAvailableGpuTypesRequest>,
    ) -> Result<Response<GetAvailableGpuTypesResponse>, Status> {
        self.answer(Rpc::GetAvailableGPUTypes, About::default(), async {
            let types =
                devices::MODELS.iter().map(|&(_, name)| (name.to_owned(), prost_types::Any::default()));
            Ok(GetAvailableGpuTypesResponse { gpu_types: types.collect() })
        })
        .await
    }

    async fn cleanup(&self, _: Request<CleanupRequest>) -> Result<Response<CleanupResponse>, Status> {
        self.answer(Rpc::Cleanup, About::default(), async { Ok(CleanupResponse {}) }).await
    }

    async fn refresh(&self, request: Request<RefreshRequest>) -> Result<Response<RefreshResponse>, Status> {
        self.answer(Rpc::Refresh, About::default(), async {
            // Without groups, newer versions would go on, and forget their scale-ups under way.
            self.view()?;
            self.visits.received(connection(&request), &self.groups, &self.clock).await;
            Ok(RefreshResponse {})
        })
        .await
    }

    async fn node_group_target_size(
        &self,
        request: Request<NodeGroupTargetSizeRequest>,
    ) -> Result<Response<NodeGroupTargetSizeResponse>, Status> {
        let id = &request.get_ref().id;
        self.answer(Rpc::NodeGroupTargetSize, About::group(id), async {
            self.asked(connection(&request)).await?;
            let view = self.view()?;
            let target_size = self.figure(&view, group_in(&view, id)?).target_size;
            Ok(NodeGroupTargetSizeResponse { target_size })
        })
        .await
    }

    async fn node_group_increase_size(
        &self,
        request: Request<NodeGroupIncreaseSizeRequest>,
    ) -> Result<Response<NodeGroupIncreaseSizeResponse>, Status> {
        let (over, request) = (connection(&request), request.get_ref());
        self.answer(Rpc::NodeGroupIncreaseSize, About::group(&request.id), async {
            self.asked_to_change(over)?;
            self.increase_size(&request.id.as_str().into(), request.delta).await?;
            Ok(NodeGroupIncreaseSizeResponse {})
        })
        .await
    }

    async fn node_group_delete_nodes(
        &self,
        request: Request<NodeGroupDeleteNodesRequest>,
    ) -> Result<Response<NodeGroupDeleteNodesResponse>, Status> {
        let (over, request) = (connection(&request), request.get_ref());
        self.answer(Rpc::NodeGroupDeleteNodes, About::nodes(&request.id, &request.nodes), async {
            self.asked_to_change(over)?;
            self.delete_nodes(&request.id, &request.nodes).await?;
            Ok(NodeGroupDeleteNodesResponse {})
        })
        .await
    }

    async fn node_group_decrease_target_size(
        &self,
        request: Request<NodeGroupDecreaseTargetSizeRequest>,
    ) -> Result<Response<NodeGroupDecreaseTargetSizeResponse>, Status> {
        let (over, request) = (connection(&request), request.get_ref());
        self.answer(Rpc::NodeGroupDecreaseTargetSize, About::group(&request.id), async {
            self.asked_to_change(over)?;
            self.decrease_target_size(&request.id.as_str().into(), request.delta).await?;
            Ok(NodeGroupDecreaseTargetSizeResponse {})
        })
        .await
    }

    async fn node_group_nodes(
        &self,
        request: Request<NodeGroupNodesRequest>,
    ) -> Result<Response<NodeGroupNodesResponse>, Status> {
        let id = &request.get_ref().id;
        self.answer(Rpc::NodeGroupNodes, About::group(id), async {
            self.asked(connection(&request)).await?;
            self.instances(id)
        })
        .await
    }

    async fn node_group_template_node_info(
        &self,
        request: Request<NodeGroupTemplateNodeInfoRequest>,
    ) -> Result<Response<NodeGroupTemplateNodeInfoResponse>, Status> {
        let id = &request.get_ref().id;
        let template = async { self.template(id) };
        self.answer(Rpc::NodeGroupTemplateNodeInfo, About::group(id), template).await
    }

    async fn node_group_get_options(
        &self,
        request: Request<NodeGroupAutoscalingOptionsRequest>,
    ) -> Result<Response<NodeGroupAutoscalingOptionsResponse>, Status> {
        let request = request.get_ref();
        self.answer(Rpc::NodeGroupGetOptions, About::group(&request.id), async {
            let node_group_autoscaling_options = self.options(request)?;
            Ok(NodeGroupAutoscalingOptionsResponse { node_group_autoscaling_options })
        })
        .await
    }
}
