//! Why a group cannot launch what it should, out of its scaling activities. Pure.

use super::LaunchFailure;
use crate::aws::Activity;

/// Codes of EC2 for want of capacity or quota: another group may do.
/// Source: [EC2 error codes](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html) and
/// [troubleshooting launches](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-instancelaunchfailure.html).
const OUT_OF_RESOURCES: [&str; 9] = [
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientCapacity",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
    "UnfulfillableCapacity",
    "InsufficientFreeAddressesInSubnet",
];

/// Texts that stand for a code where AWS leaves it out of the message.
const TEXTS: [(&str, &str); 6] = [
    ("do not have sufficient", "InsufficientInstanceCapacity"),
    ("no spot capacity available", "InsufficientInstanceCapacity"),
    ("instances than your current instance limit", "InstanceLimitExceeded"),
    ("vcpu capacity than your current vcpu limit", "VcpuLimitExceeded"),
    ("max spot instance count exceeded", "MaxSpotInstanceCountExceeded"),
    ("not enough free addresses", "InsufficientFreeAddressesInSubnet"),
];

/// Why launches fail: the newest launch decides. A launch that worked after a failure says that there is none any more.
/// `activities` are newest first.
pub fn failure(activities: &[Activity]) -> Option<LaunchFailure> {
    let newest = activities.iter().find(|activity| {
        activity.description.contains("Launching")
            && matches!(activity.status.as_str(), "Failed" | "Successful" | "Cancelled")
    })?;
    (newest.status == "Failed").then(|| classify(&newest.message))
}

fn classify(message: &str) -> LaunchFailure {
    let lower = message.to_lowercase();
    let by_code = OUT_OF_RESOURCES.into_iter().find(|code| message.contains(code));
    let by_text = TEXTS.into_iter().find(|(text, _)| lower.contains(text)).map(|(_, code)| code);
    let code = by_code.or(by_text);
    LaunchFailure {
        code: code.unwrap_or("LaunchFailed").to_owned(),
        message: message.to_owned(),
        out_of_resources: code.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(status: &str, message: &str) -> Activity {
        Activity {
            status: status.into(),
            message: message.into(),
            description: "Launching a new EC2 instance.  Status Reason: …".into(),
            started: 0,
        }
    }

    #[test]
    fn want_of_capacity_and_quota_is_told_from_everything_else() {
        let table = [
            (
                "We currently do not have sufficient m5.large capacity in the Availability Zone you requested (us-east-1a).",
                "InsufficientInstanceCapacity",
                true,
            ),
            (
                "You have requested more vCPU capacity than your current vCPU limit of 32 allows. Launching EC2 instance failed.",
                "VcpuLimitExceeded",
                true,
            ),
            (
                "UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration.",
                "UnfulfillableCapacity",
                true,
            ),
            (
                "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number of instances.",
                "InsufficientFreeAddressesInSubnet",
                true,
            ),
            ("The image id '[ami-1]' does not exist. Launching EC2 instance failed.", "LaunchFailed", false),
        ];
        for (message, code, out_of_resources) in table {
            let failure = failure(&[activity("Failed", message)]).expect("a failure");
            assert_eq!(
                (failure.code.as_str(), failure.out_of_resources),
                (code, out_of_resources),
                "{message}"
            );
        }
    }

    #[test]
    fn the_newest_launch_decides() {
        let failed = activity("Failed", "We currently do not have sufficient capacity");
        let worked = activity("Successful", "");
        let running = activity("InProgress", "");
        assert_eq!(failure(&[worked.clone(), failed.clone()]), None);
        assert!(failure(&[running, failed.clone(), worked]).is_some());
        assert_eq!(failure(&[]), None);
    }
}
