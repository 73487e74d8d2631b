//! Looks at groups.

use allocation_counter::{AllocationInfo, measure};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_types::body::SdkBody;
use ebbtide::aws::{Aws, PagesRead, TagSelector};

const GROUPS: usize = 100;
const INSTANCES: usize = 25;

/// AWS with one page of groups.
#[derive(Debug)]
struct OnePage(String);

impl HttpConnector for OnePage {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let status = 200.try_into().expect("a status");
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(self.0.clone()))))
    }
}

fn page() -> String {
    let instance = |n: usize| {
        format!(
            "<member><InstanceId>i-{n:017x}</InstanceId><InstanceType>m5.large</InstanceType>\
             <AvailabilityZone>eu-central-1a</AvailabilityZone><LifecycleState>InService</LifecycleState>\
             <HealthStatus>Healthy</HealthStatus><ProtectedFromScaleIn>false</ProtectedFromScaleIn>\
             <LaunchTemplate><LaunchTemplateId>lt-0123456789abcdef0</LaunchTemplateId>\
             <LaunchTemplateName>web</LaunchTemplateName><Version>1</Version></LaunchTemplate></member>"
        )
    };
    let instances =
        |group: usize| (0..INSTANCES).map(|n| instance(group * INSTANCES + n)).collect::<String>();
    let group = |n: usize| {
        format!(
            "<member><AutoScalingGroupName>group-{n}</AutoScalingGroupName><MinSize>0</MinSize><MaxSize>50</MaxSize>\
             <DesiredCapacity>{INSTANCES}</DesiredCapacity><Instances>{}</Instances></member>",
            instances(n)
        )
    };
    let groups: String = (0..GROUPS).map(group).collect();
    format!(
        "<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult><AutoScalingGroups>{groups}\
         </AutoScalingGroups></DescribeAutoScalingGroupsResult></DescribeAutoScalingGroupsResponse>"
    )
}

#[test]
fn a_page_of_groups_that_says_the_same_again_is_not_read_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let entered = runtime.enter();
    let connector = SharedHttpConnector::new(OnePage(page()));
    let aws = Aws::at(http_client_fn(move |_, _| connector.clone()));
    drop(entered);
    let (pages, any) = (PagesRead::default(), TagSelector { tags: [].into() });
    let look = || -> AllocationInfo {
        pages.begin();
        measure(|| {
            let found = runtime.block_on(aws.describe_tagged_groups(&any, &pages)).expect("described");
            assert_eq!((found.len(), found[0].instances.len()), (GROUPS, INSTANCES));
        })
    };
    let (first, second) = (look(), look());
    println!("{} allocations, and {} of the same page again", first.count_total, second.count_total);
    assert!(second.count_total < 1_000, "{second:?} after {first:?}");
}
