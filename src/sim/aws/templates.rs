//! Launch templates and their versions.
//!
//! Versions are numbered from 1 and never change; `$Latest` is the highest, `$Default` the one that the template names.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/userguide/launch-templates.html>

use jiff::Timestamp;

use super::requirements::{Requirements, Spelling};
use super::xml::Xml;

/// The image if none is named.
pub(super) const DEFAULT_IMAGE: &str = "ami-0abcdef1234567890";

/// A version of a launch template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateData {
    pub(super) instance_type: Option<String>,
    pub(super) image: String,
    pub(super) spot: bool,
    pub(super) requirements: Option<Requirements>,
    volumes: Vec<(String, u32)>,
    /// Cores, and threads of each.
    cpu_options: Option<(u32, u32)>,
    user_data: Option<String>,
    tags: Vec<(String, String)>,
}

impl TemplateData {
    /// On-Demand instances of `instance_type`.
    pub fn of(instance_type: impl Into<String>) -> Self {
        Self { instance_type: Some(instance_type.into()), ..Self::untyped() }
    }

    /// Without an instance type, which the group chooses.
    pub fn untyped() -> Self {
        Self {
            instance_type: None,
            image: DEFAULT_IMAGE.to_owned(),
            spot: false,
            requirements: None,
            volumes: Vec::new(),
            cpu_options: None,
            user_data: None,
            tags: Vec::new(),
        }
    }

    /// Instances of any type that meets `requirements`.
    pub fn meeting(requirements: Requirements) -> Self {
        Self { requirements: Some(requirements), ..Self::untyped() }
    }

    /// From this image.
    #[must_use]
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.image = image.into();
        self
    }

    /// With an EBS volume.
    #[must_use]
    pub fn volume(mut self, device: impl Into<String>, gib: u32) -> Self {
        self.volumes.push((device.into(), gib));
        self
    }

    /// With so many cores, and so many threads of each.
    #[must_use]
    pub fn cpu_options(mut self, cores: u32, threads: u32) -> Self {
        self.cpu_options = Some((cores, threads));
        self
    }

    /// With this user data, in plain text.
    #[must_use]
    pub fn user_data(mut self, text: impl AsRef<[u8]>) -> Self {
        self.user_data = Some(aws_smithy_types::base64::encode(text));
        self
    }

    /// Spot instances.
    #[must_use]
    pub fn spot(mut self) -> Self {
        self.spot = true;
        self
    }

    /// With a tag on its instances.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((key.into(), value.into()));
        self
    }

    fn write(&self, xml: &mut Xml) {
        xml.optional("instanceType", self.instance_type.as_ref()).text("imageId", &self.image);
        if !self.volumes.is_empty() {
            xml.list("blockDeviceMappingSet", "item", &self.volumes, |xml, (device, gib)| {
                xml.text("deviceName", device).inside("ebs", |xml| {
                    xml.text("volumeSize", gib).text("volumeType", "gp3").text("deleteOnTermination", true);
                });
            });
        }
        if let Some((cores, threads)) = self.cpu_options {
            xml.inside("cpuOptions", |xml| {
                xml.text("coreCount", cores).text("threadsPerCore", threads);
            });
        }
        xml.optional("userData", self.user_data.as_ref());
        if self.spot {
            xml.inside("instanceMarketOptions", |xml| {
                xml.text("marketType", "spot");
            });
        }
        if !self.tags.is_empty() {
            xml.list("tagSpecificationSet", "item", ["instance"], |xml, kind| {
                xml.text("resourceType", kind).list("tagSet", "item", &self.tags, |xml, (key, value)| {
                    xml.text("key", key).text("value", value);
                });
            });
        }
        if let Some(requirements) = &self.requirements {
            xml.inside("instanceRequirements", |xml| requirements.write(xml, Spelling::Ec2));
        }
    }
}

/// A launch template to add.
#[derive(Clone, Debug)]
pub struct TemplateSpec {
    pub(super) name: String,
    pub(super) versions: Vec<TemplateData>,
    pub(super) default: usize,
}

impl TemplateSpec {
    /// A template without versions; AWS always has one, so add one.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), versions: Vec::new(), default: 1 }
    }

    /// With one more version.
    #[must_use]
    pub fn version(mut self, data: TemplateData) -> Self {
        self.versions.push(data);
        self
    }

    /// With this default version instead of 1.
    #[must_use]
    pub fn default_version(mut self, number: usize) -> Self {
        self.default = number;
        self
    }
}

#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) id: String,
    pub(super) spec: TemplateSpec,
    pub(super) created: Timestamp,
}

impl Template {
    /// The number that `version` stands for, if it exists.
    pub(super) fn resolve(&self, version: &str) -> Option<usize> {
        let number = match version {
            "$Latest" => self.spec.versions.len(),
            "$Default" => self.spec.default,
            number => number.parse().ok()?,
        };
        self.data(number).map(|_| number)
    }

    pub(super) fn data(&self, number: usize) -> Option<&TemplateData> {
        self.spec.versions.get(number.checked_sub(1)?)
    }

    /// Writes a `LaunchTemplateVersion`.
    pub(super) fn write_version(&self, number: usize, xml: &mut Xml) {
        xml.text("launchTemplateId", &self.id)
            .text("launchTemplateName", &self.spec.name)
            .text("versionNumber", number)
            .time("createTime", self.created)
            .text("createdBy", "arn:aws:iam::123456789012:user/ebbtide")
            .text("defaultVersion", number == self.spec.default);
        if let Some(data) = self.data(number) {
            xml.inside("launchTemplateData", |xml| data.write(xml));
        }
    }
}
