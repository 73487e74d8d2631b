//! The identity that AWS sees.

use super::{Aws, AwsError, Operation, retry};

/// Our identity as AWS sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user or the role's session, as an ARN.
    pub arn: String,
    /// The account.
    pub account: String,
}

impl Aws {
    /// Our identity; `None` in simulated worlds. Everybody may ask: an error means missing or wrong credentials, or
    /// that STS is unreachable.
    pub async fn identity(&self) -> Result<Option<Identity>, AwsError> {
        let Some(sts) = &self.sts else { return Ok(None) };
        let send = || sts.get_caller_identity().send();
        let answer = self.call(Operation::GetCallerIdentity, retry::LOOK_UP, send).await?;
        let (arn, account) = (answer.arn.unwrap_or_default(), answer.account.unwrap_or_default());
        Ok(Some(Identity { arn, account }))
    }
}
