//! Reads the status message of a failed launch.

use crate::groups::LaunchFailure;

/// Codes that mean a lack of capacity or quota: another group may succeed.
///
/// Sources: [EC2 error codes](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html),
/// [Troubleshoot Auto Scaling: instance launch
/// failure](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-instancelaunchfailure.html).
const OUT_OF_RESOURCES: &[&str] = &[
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientAddressCapacity",
    "InsufficientVolumeCapacity",
    "ReservationCapacityExceeded",
    "UnfulfillableCapacity",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "MaxSpotFleetRequestCountExceeded",
    "MaxFleetCountExceeded",
    "MaxIOPSLimitExceeded",
    "VolumeLimitExceeded",
    "NetworkInterfaceLimitExceeded",
    "PrivateIpAddressLimitExceeded",
    "AddressLimitExceeded",
    "SpotMaxPriceTooLow",
];

/// Texts that come without a code, in lower case, and the code they mean (same sources, and
/// [Insufficient capacity](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-capacity.html)).
const TEXTS: &[(&str, &str)] = &[
    ("do not have sufficient", "InsufficientInstanceCapacity"),
    ("don't have sufficient", "InsufficientInstanceCapacity"),
    ("there is no spot capacity available", "UnfulfillableCapacity"),
    ("unable to fulfill capacity", "UnfulfillableCapacity"),
    ("insufficient capacity", "InsufficientInstanceCapacity"),
    ("insufficient instance capacity", "InsufficientInstanceCapacity"),
    ("more vcpu capacity than your current vcpu limit", "VcpuLimitExceeded"),
    ("max spot instance count exceeded", "MaxSpotInstanceCountExceeded"),
    ("requested more instances", "InstanceLimitExceeded"),
    ("your quota allows for", "InstanceLimitExceeded"),
    ("not enough free addresses in subnet", "InsufficientFreeAddressesInSubnet"),
    ("is lower than the minimum required spot request fulfillment price", "SpotMaxPriceTooLow"),
];

/// In bytes. Thousands of placeholders may bear a code in one answer.
const LONGEST_CODE: usize = 100;

/// Used where the text tells no code.
const NO_CODE: &str = "LaunchFailed";

/// Reads the status message of a failed launch. AWS writes `[Could not launch … Instances. ]CODE - TEXT Launching EC2
/// instance failed.`, or only a text.
pub(super) fn read(message: &str) -> LaunchFailure {
    let is_code = |word: &&str| {
        (5..=LONGEST_CODE).contains(&word.len())
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
            && word.chars().filter(char::is_ascii_uppercase).count() > 1
    };
    let stated = message.split(" - ").find_map(|part| part.split_whitespace().next_back().filter(is_code));
    let known = || OUT_OF_RESOURCES.iter().copied().find(|code| message.contains(code));
    let implied = || {
        let text = message.to_ascii_lowercase();
        TEXTS.iter().find(|(part, _)| text.contains(part)).map(|&(_, code)| code)
    };
    // A text without " - " has no code in front of it, and its last word must not be taken for one.
    let stated = stated.filter(|_| message.contains(" - "));
    let code = stated.or_else(known).or_else(implied).unwrap_or(NO_CODE);
    LaunchFailure {
        code: code.to_owned(),
        message: message.to_owned(),
        out_of_resources: OUT_OF_RESOURCES.contains(&code),
        launches: 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_status_message_gives_a_code_and_a_class() {
        let table = [
            (
                "We currently do not have sufficient p3.2xlarge capacity in the Availability Zone you requested \
                 (us-east-1a). Our system will be working on provisioning additional capacity. You can currently \
                 get p3.2xlarge capacity by not specifying an Availability Zone in your request or choosing \
                 us-east-1b. Launching EC2 instance failed.",
                "InsufficientInstanceCapacity",
                true,
            ),
            (
                "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your \
                 request configuration. Please adjust your request and try again. Launching EC2 instance failed.",
                "UnfulfillableCapacity",
                true,
            ),
            (
                "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity \
                 than your current vCPU limit of 32 allows for the instance bucket that the specified instance \
                 type belongs to. Launching EC2 instance failed.",
                "VcpuLimitExceeded",
                true,
            ),
            (
                "You have requested more vCPU capacity than your current vCPU limit of 0 allows. Launching EC2 \
                 instance failed.",
                "VcpuLimitExceeded",
                true,
            ),
            (
                "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count \
                 exceeded. Launching EC2 instance failed.",
                "MaxSpotInstanceCountExceeded",
                true,
            ),
            (
                "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number of \
                 instances. Launching EC2 instance failed.",
                "InsufficientFreeAddressesInSubnet",
                true,
            ),
            ("InsufficientFreeAddressesInSubnet - no more", "InsufficientFreeAddressesInSubnet", true),
            (
                "Your quota allows for 0 more running instance(s). You requested at least 1. Launching EC2 \
                 instance failed.",
                "InstanceLimitExceeded",
                true,
            ),
            (
                "There is no Spot capacity available that matches your request. Launching EC2 instance failed.",
                "UnfulfillableCapacity",
                true,
            ),
            (
                "Your Spot request price of 0.001 is lower than the minimum required Spot request fulfillment \
                 price of 0.02. Launching EC2 instance failed.",
                "SpotMaxPriceTooLow",
                true,
            ),
            (
                "Unsupported - Your requested instance type (m5.large) is not supported in your requested \
                 Availability Zone (us-east-1e). Launching EC2 instance failed.",
                "LaunchFailed",
                false,
            ),
            (
                "InvalidAMIID.NotFound - The image id '[ami-1]' does not exist. Launching EC2 instance failed.",
                "InvalidAMIID.NotFound",
                false,
            ),
            ("Client.InternalError: Client error on launch", "LaunchFailed", false),
            ("", "LaunchFailed", false),
            (&format!("{} - why", "Aa".repeat(50)), &"Aa".repeat(50), false),
            (&format!("{}a - why", "Aa".repeat(50)), "LaunchFailed", false),
        ];
        for (message, code, out_of_resources) in table {
            let expected =
                LaunchFailure { code: code.into(), message: message.into(), out_of_resources, launches: 1 };
            assert_eq!(read(message), expected);
        }
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(message in ".*") {
            let _ = read(&message);
        }
    }
}
