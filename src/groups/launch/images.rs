//! The architecture of images: attribute-based selection is for one architecture, and the image decides which.
//!
//! As cluster-autoscaler's own AWS provider has it
//! ([aws_wrapper.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_wrapper.go),
//! `getInstanceTypesFromInstanceRequirements…`). An image never changes and is asked for once, all that are new in one
//! call. One that is named by a Systems Manager parameter (`resolve:ssm:…`) cannot be asked for.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{Kept, is_unknown};
use crate::aws::{Aws, AwsError};

/// What is known of images.
#[derive(Debug, Default)]
pub(super) struct Images(BTreeMap<String, Kept<Option<bool>>>);

impl Images {
    /// Looks up those that are not known. Those that EC2 does not have are left alone for a while.
    pub(super) async fn refresh(
        &mut self,
        aws: &Aws,
        images: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), AwsError> {
        let can_be_asked = |image: &&String| image.starts_with("ami-");
        let new = images.iter().filter(can_be_asked).filter(|&image| is_unknown(self.0.get(image), now));
        let new: Vec<String> = new.cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        let found = aws.arm_images(&new).await;
        // What AWS refuses it refuses again a minute later.
        if !found.as_ref().is_err_and(AwsError::is_transient) {
            self.0.extend(new.into_iter().map(|image| (image, Kept { at: now, value: None })));
        }
        let found = found?.into_iter().map(|(image, arm)| (image, Kept { at: now, value: Some(arm) }));
        self.0.extend(found);
        Ok(())
    }

    /// Whether it is of arm64, if that is known.
    pub(super) fn is_arm(&self, image: &str) -> Option<bool> {
        self.0.get(image)?.value
    }
}
