//! What AWS's clock reads, by the dates of its answers.

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};
use jiff::Timestamp;

use crate::clock::{Clock, http_date};

/// Tells the clock when AWS has dated an answer.
#[derive(Debug)]
pub(super) struct Dates(pub(super) Clock);

/// When a request was sent, by our clock.
#[derive(Debug)]
struct Sent(Timestamp);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

#[dyn_dispatch_hint]
impl Intercept for Dates {
    fn name(&self) -> &'static str {
        "Dates"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        cfg.interceptor_state().store_put(Sent(self.0.now()));
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response();
        // A proxy that answers for AWS has a clock of its own.
        let date = answer.headers().get("date").filter(|_| !answer.status().is_server_error());
        if let Some((date, Sent(sent))) = date.and_then(http_date).zip(cfg.load::<Sent>()) {
            self.0.note_dated_by_aws(date, *sent);
        }
        Ok(())
    }
}
