//! Who we are to AWS.

use super::{Aws, AwsError, Operation, retry};

/// As whom AWS knows us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user or the role's session, as an ARN.
    pub arn: String,
    /// The account.
    pub account: String,
}

impl Aws {
    /// Asks AWS as whom it knows us; none where there is nobody to ask. Everybody may ask that: an error says that
    /// credentials are missing or wrong, or that STS cannot be reached from here.
    pub async fn identity(&self) -> Result<Option<Identity>, AwsError> {
        let Some(sts) = &self.sts else { return Ok(None) };
        let send = || sts.get_caller_identity().send();
        let answer = self.call(Operation::GetCallerIdentity, retry::LOOK_UP, send).await?;
        let (arn, account) = (answer.arn.unwrap_or_default(), answer.account.unwrap_or_default());
        Ok(Some(Identity { arn, account }))
    }
}
