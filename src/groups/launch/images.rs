//! The architecture of images: attribute-based selection is for one architecture, and the image decides which.
//!
//! As in cluster-autoscaler's own AWS provider
//! ([aws_wrapper.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_wrapper.go),
//! `getInstanceTypesFromInstanceRequirements…`). Images never change: each is asked for once, all new ones in one call.
//!
//! - Until EC2 has answered, the architecture is unknown: with a wrong guess, cluster-autoscaler would grow a group
//!   whose nodes its pods cannot run on.
//! - Where EC2 will not tell, x86_64 is assumed: an image that is gone or not ours to see, or one named by a Systems
//!   Manager parameter (`resolve:ssm:…`), which cannot be asked for.

use std::collections::BTreeSet;

use super::cache::{Named, Round};
use crate::aws::{AwsError, IMAGES_A_CALL};

/// Whether known images are arm64.
#[derive(Debug, Default)]
pub(super) struct Images(Named<bool>);

impl Images {
    /// Looks up unknown images, and forgets all others. Missing ones are left alone for a while.
    pub(super) async fn refresh(
        &mut self,
        mut images: BTreeSet<String>,
        round: &mut Round<'_>,
    ) -> Result<(), AwsError> {
        images.retain(|image| can_be_asked(image));
        let aws = round.aws;
        let ask = |batch: Vec<String>| async move { aws.arm_images(&batch).await };
        self.0.refresh(&images, IMAGES_A_CALL, round, ask).await
    }

    /// Whether the image is arm64; `None` until EC2 has answered.
    pub(super) fn is_arm(&self, image: &str) -> Option<bool> {
        let is_settled = !can_be_asked(image) || self.0.is_answered(image);
        is_settled.then(|| self.0.get(image).is_some_and(|&arm| arm))
    }
}

fn can_be_asked(image: &str) -> bool {
    image.starts_with("ami-")
}
