//! The architecture of images: attribute-based selection is for one architecture, and the image decides which.
//!
//! As cluster-autoscaler's own AWS provider has it
//! ([aws_wrapper.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_wrapper.go),
//! `getInstanceTypesFromInstanceRequirements…`). An image never changes and is asked for once, all that are new in one
//! call.
//!
//! - While EC2 is busy or away, the architecture of an image that it never told is not known: a guess would make
//!   cluster-autoscaler grow a group whose nodes its pods cannot run on.
//! - Where EC2 will not tell, x86_64 is assumed, as most are: an image that is gone or that we may not see, and one that
//!   is named by a Systems Manager parameter (`resolve:ssm:…`), which cannot be asked for.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::cache::Named;
use crate::aws::{Aws, AwsError, IMAGES_A_CALL};

/// What is known of images: which are of arm64.
#[derive(Debug, Default)]
pub(super) struct Images(Named<bool>);

impl Images {
    /// Looks up those that are not known, adding to `answers` as they come. Those that EC2 does not have are left alone
    /// for a while.
    pub(super) async fn refresh(
        &mut self,
        aws: &Aws,
        images: &BTreeSet<String>,
        now: Timestamp,
        spare: &mut bool,
        answers: &mut usize,
    ) -> Result<(), AwsError> {
        let due = self.0.due(images.iter().filter(|image| can_be_asked(image)), now, spare);
        let mut outcome = Ok(());
        for batch in due.chunks(IMAGES_A_CALL) {
            match aws.arm_images(batch).await {
                Ok(found) => {
                    self.0.keep(batch, found, now);
                    *answers += 1;
                }
                Err(error) if error.is_transient() => return outcome.and(Err(error)),
                Err(error) => {
                    // What AWS refuses it refuses again a minute later.
                    self.0.keep(batch, [], now);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Whether it is of arm64; none while EC2 has not answered for it.
    pub(super) fn is_arm(&self, image: &str) -> Option<bool> {
        let is_settled = !can_be_asked(image) || self.0.is_answered(image);
        is_settled.then(|| self.0.get(image).is_some_and(|&arm| arm))
    }

    /// Forgets all others.
    pub(super) fn retain(&mut self, images: &BTreeSet<String>) {
        self.0.retain(images);
    }
}

fn can_be_asked(image: &str) -> bool {
    image.starts_with("ami-")
}
