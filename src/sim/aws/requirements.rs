//! Attribute-based instance type selection: requirements, their spelling in three APIs, and the types that meet them.
//!
//! A type must meet every given requirement. Bare metal and burstable types are out unless asked for, as in AWS. Modelled:
//! vCPUs, memory, accelerator count, bare metal, burstable, allowed and excluded types.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceRequirementsRequest.html>

use super::error::ApiError;
use super::instance_types::InstanceType;
use super::query::Form;
use super::xml::Xml;

/// A range, possibly without an upper bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Range {
    min: u32,
    max: Option<u32>,
}

impl Range {
    fn contains(self, value: u32) -> bool {
        value >= self.min && self.max.is_none_or(|max| value <= max)
    }

    fn read(form: &Form, name: &str) -> Result<Option<Self>, ApiError> {
        let (min, max) = (form.parsed(&format!("{name}.Min"))?, form.parsed(&format!("{name}.Max"))?);
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let text = format!("{name}: the minimum {min} is more than the maximum {max}");
            return Err(ApiError::client("InvalidParameterValue", text));
        }
        Ok((min.is_some() || max.is_some()).then(|| Self { min: min.unwrap_or_default(), max }))
    }
}

/// Whether types with a trait are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    Excluded,
    Included,
    Required,
}

impl Wanted {
    fn accepts(self, has: bool) -> bool {
        match self {
            Self::Excluded => !has,
            Self::Included => true,
            Self::Required => has,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Excluded => "excluded",
            Self::Included => "included",
            Self::Required => "required",
        }
    }

    fn of(name: Option<&str>) -> Self {
        match name {
            Some("included") => Self::Included,
            Some("required") => Self::Required,
            _ => Self::Excluded,
        }
    }
}

/// Requirements of an instance type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    vcpus: Range,
    memory_mib: Range,
    accelerators: Option<Range>,
    bare_metal: Wanted,
    burstable: Wanted,
    allowed: Vec<String>,
    excluded: Vec<String>,
}

/// How an API spells the members.
#[derive(Clone, Copy, Debug)]
pub(super) enum Spelling {
    AutoScaling,
    Ec2,
}

impl Requirements {
    /// At least this many vCPUs and MiB of memory.
    pub fn at_least(vcpus: u32, memory_mib: u32) -> Self {
        let from = |min| Range { min, max: None };
        Self { vcpus: from(vcpus), memory_mib: from(memory_mib), ..Self::default() }
    }

    /// At most this many vCPUs and MiB of memory.
    #[must_use]
    pub fn at_most(mut self, vcpus: u32, memory_mib: u32) -> Self {
        (self.vcpus.max, self.memory_mib.max) = (Some(vcpus), Some(memory_mib));
        self
    }

    /// With this many accelerators.
    #[must_use]
    pub fn accelerators(mut self, min: u32, max: u32) -> Self {
        self.accelerators = Some(Range { min, max: Some(max) });
        self
    }

    pub(super) fn met_by(&self, candidate: &InstanceType) -> bool {
        self.vcpus.contains(candidate.vcpus)
            && self.memory_mib.contains(candidate.memory_mib)
            && self.accelerators.is_none_or(|range| range.contains(candidate.accelerators()))
            && self.bare_metal.accepts(candidate.bare_metal())
            && self.burstable.accepts(candidate.burstable())
            && (self.allowed.is_empty() || self.allowed.iter().any(|p| matches(p, candidate.name)))
            && !self.excluded.iter().any(|p| matches(p, candidate.name))
    }

    /// Reads the `InstanceRequirements` of an EC2 request.
    pub(super) fn read(form: &Form) -> Result<Self, ApiError> {
        let key = |name: &str| format!("InstanceRequirements.{name}");
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let missing = |name: &str| {
            ApiError::client(
                "MissingParameter",
                format!("The request must contain the parameter InstanceRequirements.{name}"),
            )
        };
        Ok(Self {
            vcpus: Range::read(form, &key("VCpuCount"))?.ok_or_else(|| missing("VCpuCount"))?,
            memory_mib: Range::read(form, &key("MemoryMiB"))?.ok_or_else(|| missing("MemoryMiB"))?,
            accelerators: Range::read(form, &key("AcceleratorCount"))?,
            bare_metal: Wanted::of(form.get(&key("BareMetal"))),
            burstable: Wanted::of(form.get(&key("BurstablePerformance"))),
            allowed: owned(form.list(&key("AllowedInstanceType"))),
            excluded: owned(form.list(&key("ExcludedInstanceType"))),
        })
    }

    /// Writes them for a mixed instances policy or a launch template.
    pub(super) fn write(&self, xml: &mut Xml, spelling: Spelling) {
        let (range, name, item): (_, fn(&str, &str) -> String, _) = match spelling {
            Spelling::AutoScaling => (["Min", "Max"], |plain, _| plain.to_owned(), "member"),
            Spelling::Ec2 => {
                (["min", "max"], |plain, set| lower_first(if set.is_empty() { plain } else { set }), "item")
            }
        };
        let write_range = |xml: &mut Xml, tag: &str, value: Range| {
            xml.inside(&name(tag, ""), |xml| {
                xml.text(range[0], value.min).optional(range[1], value.max);
            });
        };
        write_range(xml, "VCpuCount", self.vcpus);
        write_range(xml, "MemoryMiB", self.memory_mib);
        if let Some(accelerators) = self.accelerators {
            write_range(xml, "AcceleratorCount", accelerators);
        }
        xml.text(&name("BareMetal", ""), self.bare_metal.name());
        xml.text(&name("BurstablePerformance", ""), self.burstable.name());
        if !self.allowed.is_empty() {
            xml.values(&name("AllowedInstanceTypes", "AllowedInstanceTypeSet"), item, &self.allowed);
        }
        if !self.excluded.is_empty() {
            xml.values(&name("ExcludedInstanceTypes", "ExcludedInstanceTypeSet"), item, &self.excluded);
        }
    }
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == name };
    let Some(rest) = name.strip_prefix(head) else { return false };
    rest.char_indices().map(|(at, _)| &rest[at..]).chain(std::iter::once("")).any(|rest| matches(tail, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::aws::instance_types::TYPES;

    fn names(requirements: &Requirements) -> Vec<&'static str> {
        TYPES.iter().filter(|candidate| requirements.met_by(candidate)).map(|t| t.name).collect()
    }

    #[test]
    fn burstable_types_are_out_unless_asked_for() {
        assert!(!names(&Requirements::at_least(1, 1024)).contains(&"t3.medium"));
    }

    #[test]
    fn excluded_patterns_may_have_stars_anywhere() {
        let wanted = || Requirements::at_least(2, 8192).at_most(4, 16384).accelerators(0, 0);
        let all = names(&wanted());
        assert_eq!(all, ["m5.large", "m5.xlarge", "m6g.large", "r5.large"]);
        let some = Requirements { excluded: vec!["m5.*".into(), "*g.large".into()], ..wanted() };
        assert_eq!(names(&some), ["r5.large"]);
    }
}
