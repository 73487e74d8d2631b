//! The attach-detach controller: one VolumeAttachment for each volume that a pod uses (annotation `sim/volume`).
//!
//! Invariants: a volume is attached to one node at a time, and a pod waits for its own. A volume is detached
//! `sim/detach-seconds` after it is unmounted, or six minutes after its last pod (a forced detach) if the node is not there
//! to unmount it. If there is a DaemonSet of a CSI driver (annotation `sim/csi-driver`), nothing is mounted or unmounted on
//! a node without a running pod of it. <https://kubernetes-csi.github.io/docs/deploying.html>

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::containers::Stage;
use super::names::Name;
use super::object::{Object, text};
use super::queue::Task;
use super::resources::Resource;
use super::state::State;

/// The annotation that names a pod's volume.
pub(super) const ANNOTATION: &str = "sim/volume";

/// The annotation of a CSI driver's pods, which mount and unmount.
pub(super) const DRIVER: &str = "sim/csi-driver";

/// Default of the annotation `sim/detach-seconds`.
const DETACHES_AFTER: Duration = Duration::from_secs(3);

/// `maxWaitForUnmountDuration` of the real controller.
/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/volume/attachdetach/attach_detach_controller.go>
const FORCED_AFTER: Duration = Duration::from_mins(6);

/// Where a volume is attached.
pub(super) struct Attachment {
    object: Name,
    node: String,
    detaches_after: Duration,
    unused_since: Option<Timestamp>,
}

impl State {
    /// Whether a pod's volume, if any, is attached to its node.
    pub(super) fn volume_is_here(&self, pod: &Object) -> bool {
        pod.annotation(ANNOTATION).is_none_or(|volume| {
            let attached = self.attachments.get(volume).map(|attachment| &attachment.node);
            attached == pod.pod().node.as_ref()
        })
    }

    /// Whether a pod's volume, if any, can be mounted and unmounted on a node now.
    pub(super) fn can_mount(&self, pod: &Object, node: &str) -> bool {
        let is_driver = |object: &Object, path: &[&str]| text(&object.value, path) == Some("true");
        let template = ["spec", "template", "metadata", "annotations", DRIVER];
        pod.annotation(ANNOTATION).is_none()
            || !self.store.all(Resource::DaemonSets).any(|set| is_driver(set, &template))
            || self.containers.values().any(|container| {
                let runs = matches!(container.stage, Stage::Running { .. } | Stage::Asked { .. });
                runs && container.node == node && container.pod.annotation(DRIVER) == Some("true")
            })
    }

    /// Whether a volume is mounted on a node.
    fn is_mounted(&self, volume: &str, node: &str) -> bool {
        let here = self.containers.values().filter(|container| container.node == node);
        let mut users = here.filter(|container| container.pod.annotation(ANNOTATION) == Some(volume));
        users.any(|container| !matches!(container.stage, Stage::Starting { .. } | Stage::Unmounted))
    }

    /// Attaches or detaches a volume, as its pods need.
    pub(super) fn sync_volume(&mut self, volume: &str) {
        let all = self.store.all(Resource::Pods);
        let users = all.filter(|pod| {
            pod.annotation(ANNOTATION) == Some(volume) && pod.pod().node.is_some() && !pod.pod().finished()
        });
        let users: Vec<_> = users.cloned().collect();
        let Some(attached) = self.attachments.get(volume) else {
            if let Some(pod) = users.first() {
                self.attach(volume, pod);
                for pod in &users {
                    self.queue.add(Task::Kubelet(pod.name.clone()), self.now);
                }
            }
            return;
        };
        let node = attached.node.clone();
        let used = users.iter().any(|pod| pod.pod().node.as_ref() == Some(&node));
        let (there, mounted) = (self.kubelet_hears(&node), self.is_mounted(volume, &node));
        let now = self.now;
        let Some(attached) = self.attachments.get_mut(volume) else { return };
        if used {
            attached.unused_since = None;
            return;
        }
        let unused_since = *attached.unused_since.get_or_insert(now);
        if there && mounted {
            // Checked again when it is unmounted.
            attached.unused_since = None;
            return;
        }
        let due = unused_since + if there { attached.detaches_after } else { FORCED_AFTER };
        if now < due {
            self.queue.add(Task::Volume(volume.to_owned()), due);
            return;
        }
        let object = attached.object.clone();
        self.attachments.remove(volume);
        self.remove(Resource::VolumeAttachments, &object);
        self.tell_attached(&node);
        self.sync_volume(volume);
    }

    fn attach(&mut self, volume: &str, pod: &Object) {
        let Some(node) = pod.pod().node.clone() else { return };
        let object = Name::cluster(&format!("csi-{volume}-{node}"));
        let metadata = self.new_metadata(&object);
        let value = json!({
            "metadata": metadata,
            "spec": {
                "attacher": "ebs.csi.aws.com",
                "nodeName": node,
                "source": { "persistentVolumeName": volume },
            },
            "status": { "attached": true },
        });
        self.put(Resource::VolumeAttachments, value);
        let detaches_after = pod.seconds("sim/detach-seconds").unwrap_or(DETACHES_AFTER);
        let attachment = Attachment { object, node, detaches_after, unused_since: None };
        let node = attachment.node.clone();
        self.attachments.insert(volume.to_owned(), attachment);
        self.tell_attached(&node);
    }

    /// Writes a Node's attached volumes into its status.
    fn tell_attached(&mut self, node: &str) {
        let here = self.attachments.iter().filter(|(_, attachment)| attachment.node == node);
        let volumes: Vec<_> = here
            .map(|(volume, _)| json!({ "name": format!("kubernetes.io/csi/ebs.csi.aws.com^{volume}"), "devicePath": "" }))
            .collect();
        self.edit(Resource::Nodes, &Name::cluster(node), |value| {
            value["status"]["volumesAttached"] = json!(volumes);
        });
    }
}
