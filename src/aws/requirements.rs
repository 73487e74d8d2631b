//! Attribute-based instance type selection.
//!
//! Auto Scaling, launch templates and GetInstanceTypesFromInstanceRequirements have three sets of types for the same
//! thing; this converts the first two into the third.

use aws_sdk_autoscaling::types as asg;
use aws_sdk_ec2::types as ec2;

/// Attributes that an instance type must have.
///
/// Source: [InstanceRequirements](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_InstanceRequirements.html).
#[derive(Clone, Debug, PartialEq)]
pub struct Requirements(ec2::InstanceRequirementsRequest);

/// Converts a range to the request's type.
macro_rules! range {
    ($from:expr, $to:ident) => {
        $from.as_ref().map(|range| ec2::$to::builder().set_min(range.min).set_max(range.max).build())
    };
}

/// Converts a list of enum values to the request's type.
macro_rules! words {
    ($from:expr, $to:ident) => {
        $from.as_ref().map(|all| all.iter().map(|word| ec2::$to::from(word.as_str())).collect())
    };
}

/// Converts the baseline CPU performance to the request's type.
macro_rules! performance {
    ($from:expr) => {
        $from.as_ref().map(|factors| {
            let reference = |family: &Option<String>| {
                ec2::PerformanceFactorReferenceRequest::builder().set_instance_family(family.clone()).build()
            };
            let cpu = factors.cpu.as_ref().map(|cpu| {
                let references = cpu
                    .references
                    .as_ref()
                    .map(|all| all.iter().map(|of| reference(&of.instance_family)).collect());
                ec2::CpuPerformanceFactorRequest::builder().set_references(references).build()
            });
            ec2::BaselinePerformanceFactorsRequest::builder().set_cpu(cpu).build()
        })
    };
}

/// Converts all that Auto Scaling and launch templates have in common.
///
/// The SDK's types are `#[non_exhaustive]`, so the compiler cannot report new fields; a test does.
macro_rules! request {
    ($from:expr) => {{
        let from = $from;
        ec2::InstanceRequirementsRequest::builder()
            .set_v_cpu_count(range!(from.v_cpu_count, VCpuCountRangeRequest))
            .set_memory_mib(range!(from.memory_mib, MemoryMiBRequest))
            .set_cpu_manufacturers(words!(from.cpu_manufacturers, CpuManufacturer))
            .set_memory_gib_per_v_cpu(range!(from.memory_gib_per_v_cpu, MemoryGiBPerVCpuRequest))
            .set_excluded_instance_types(from.excluded_instance_types.clone())
            .set_allowed_instance_types(from.allowed_instance_types.clone())
            .set_instance_generations(words!(from.instance_generations, InstanceGeneration))
            .set_bare_metal(from.bare_metal.as_ref().map(|word| word.as_str().into()))
            .set_burstable_performance(from.burstable_performance.as_ref().map(|word| word.as_str().into()))
            .set_require_hibernate_support(from.require_hibernate_support)
            .set_network_interface_count(range!(from.network_interface_count, NetworkInterfaceCountRequest))
            .set_network_bandwidth_gbps(range!(from.network_bandwidth_gbps, NetworkBandwidthGbpsRequest))
            .set_local_storage(from.local_storage.as_ref().map(|word| word.as_str().into()))
            .set_local_storage_types(words!(from.local_storage_types, LocalStorageType))
            .set_total_local_storage_gb(range!(from.total_local_storage_gb, TotalLocalStorageGbRequest))
            .set_baseline_ebs_bandwidth_mbps(range!(
                from.baseline_ebs_bandwidth_mbps,
                BaselineEbsBandwidthMbpsRequest
            ))
            .set_accelerator_types(words!(from.accelerator_types, AcceleratorType))
            .set_accelerator_count(range!(from.accelerator_count, AcceleratorCountRequest))
            .set_accelerator_manufacturers(words!(from.accelerator_manufacturers, AcceleratorManufacturer))
            .set_accelerator_names(words!(from.accelerator_names, AcceleratorName))
            .set_accelerator_total_memory_mib(range!(
                from.accelerator_total_memory_mib,
                AcceleratorTotalMemoryMiBRequest
            ))
            .set_spot_max_price_percentage_over_lowest_price(from.spot_max_price_percentage_over_lowest_price)
            .set_max_spot_price_as_percentage_of_optimal_on_demand_price(
                from.max_spot_price_as_percentage_of_optimal_on_demand_price,
            )
            .set_on_demand_max_price_percentage_over_lowest_price(
                from.on_demand_max_price_percentage_over_lowest_price,
            )
            .set_baseline_performance_factors(performance!(from.baseline_performance_factors))
    }};
}

impl Requirements {
    pub(crate) fn of_group(from: &asg::InstanceRequirements) -> Self {
        Self(request!(from).build())
    }

    pub(super) fn of_template(from: &ec2::InstanceRequirements) -> Self {
        let encryption = from.require_encryption_in_transit;
        Self(request!(from).set_require_encryption_in_transit(encryption).build())
    }

    pub(super) fn request(&self) -> ec2::InstanceRequirementsRequest {
        self.0.clone()
    }

    /// A text that is equal for equal requirements.
    pub fn key(&self) -> String {
        format!("{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attributes in the Debug text of an SDK type.
    fn attributes(shown: &str) -> Vec<String> {
        let fields = shown.split_once('{').expect("has fields").1.trim_end_matches(['}', ' ']);
        fields.split(',').map(|field| field.split(':').next().unwrap_or_default().trim().to_owned()).collect()
    }

    #[test]
    fn the_sdk_knows_no_attribute_that_is_not_copied() {
        let of_group = format!("{:?}", asg::InstanceRequirements::builder().build());
        let of_template = format!("{:?}", ec2::InstanceRequirements::builder().build());
        let copied = include_str!("requirements.rs");
        for shown in [of_group, of_template] {
            let attributes = attributes(&shown);
            assert!(attributes.len() >= 25, "{attributes:?}");
            for attribute in attributes {
                assert!(copied.contains(&format!(".set_{attribute}(")), "{attribute} is not copied");
            }
        }
    }

    #[test]
    fn both_spellings_become_the_same_request() {
        let of_group = asg::InstanceRequirements::builder()
            .v_cpu_count(asg::VCpuCountRequest::builder().min(2).max(4).build())
            .memory_mib(asg::MemoryMiBRequest::builder().min(4096).build())
            .cpu_manufacturers(asg::CpuManufacturer::Intel)
            .bare_metal(asg::BareMetal::Excluded)
            .allowed_instance_types("m5.*")
            .baseline_performance_factors(
                asg::BaselinePerformanceFactorsRequest::builder()
                    .cpu(
                        asg::CpuPerformanceFactorRequest::builder()
                            .references(
                                asg::PerformanceFactorReferenceRequest::builder()
                                    .instance_family("m6")
                                    .build(),
                            )
                            .build(),
                    )
                    .build(),
            )
            .build();
        let of_template = ec2::InstanceRequirements::builder()
            .v_cpu_count(ec2::VCpuCountRange::builder().min(2).max(4).build())
            .memory_mib(ec2::MemoryMiB::builder().min(4096).build())
            .cpu_manufacturers(ec2::CpuManufacturer::Intel)
            .bare_metal(ec2::BareMetal::Excluded)
            .allowed_instance_types("m5.*")
            .baseline_performance_factors(
                ec2::BaselinePerformanceFactors::builder()
                    .cpu(
                        ec2::CpuPerformanceFactor::builder()
                            .references(
                                ec2::PerformanceFactorReference::builder().instance_family("m6").build(),
                            )
                            .build(),
                    )
                    .build(),
            );
        let encrypted =
            Requirements::of_template(&of_template.clone().require_encryption_in_transit(true).build());
        let of_template = of_template.build();
        let (group, template) = (Requirements::of_group(&of_group), Requirements::of_template(&of_template));
        assert_eq!(group, template);
        assert_eq!(group.key(), template.key());
        assert!(group.key().contains("m6"), "{}", group.key());
        assert_eq!(encrypted.request().require_encryption_in_transit(), Some(true));
        assert_ne!(encrypted.key(), template.key());
        assert_eq!(group.request().v_cpu_count().and_then(ec2::VCpuCountRangeRequest::max), Some(4));
    }
}
