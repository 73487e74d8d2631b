//! The EC2 API, version 2016-11-15: instance types, launch template versions, instances. Read-only; changes are in `tags`.
//!
//! <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Operations.html>

use jiff::{SignedDuration, Timestamp};

use super::error::ApiError;
use super::group::{Instance, private_dns_name};
use super::instance_types::{self, TYPES};
use super::operation::Operation;
use super::prices;
use super::query::{Filter, Form, page, page_size};
use super::requirements::Requirements;
use super::state::{ACCOUNT, State};
use super::tags;
use super::templates::Template;
use super::xml::Xml;

/// How long EC2 shows an instance after its end.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/terminating-instances.html>
const SHOWN_WHEN_GONE: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn dispatch(
    state: &mut State,
    operation: Operation,
    form: &Form,
    now: Timestamp,
) -> Result<Xml, ApiError> {
    match operation {
        Operation::DescribeInstanceTypes => describe_instance_types(form),
        Operation::GetInstanceTypesFromInstanceRequirements => from_requirements(form),
        Operation::DescribeLaunchTemplateVersions => describe_template_versions(state, form),
        Operation::DescribeImages => describe_images(state, form),
        Operation::DescribeSpotPriceHistory => prices::describe(state, form, now),
        Operation::DescribeInstances => describe_instances(state, form, now),
        Operation::CreateTags => tags::create(state, form),
        Operation::DeleteTags => tags::delete(state, form),
        Operation::DescribeTags => tags::describe(state, form),
        _ => {
            let (action, version) = (form.get("Action"), form.get("Version"));
            Err(ApiError::invalid_action(action.unwrap_or_default(), version.unwrap_or_default()))
        }
    }
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html>
fn describe_instance_types(form: &Form) -> Result<Xml, ApiError> {
    let names = form.list("InstanceType");
    let size = page_size(form, "MaxResults", 100, 100)?;
    if names.len() > 100 {
        return Err(invalid_value("The maximum number of instance types per request is 100"));
    }
    let unknown: Vec<_> = names.iter().copied().filter(|name| instance_types::find(name).is_none()).collect();
    if !unknown.is_empty() {
        return Err(ApiError::client(
            "InvalidInstanceType",
            format!("The following supplied instance types do not exist: [{}]", unknown.join(", ")),
        ));
    }
    let mut types: Vec<_> = TYPES
        .iter()
        .filter(|candidate| names.is_empty() || names.contains(&candidate.name))
        .map(|candidate| (candidate.name.to_owned(), candidate))
        .collect();
    types.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (types, next) = page(types, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("instanceTypeSet", "item", types, |xml, one| one.write(xml)).optional("nextToken", next);
    }))
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetInstanceTypesFromInstanceRequirements.html>
fn from_requirements(form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxResults", 1000, 1000)?;
    let architectures = form.list("ArchitectureType");
    let wanted = Requirements::read(form)?;
    let mut types: Vec<_> = TYPES
        .iter()
        .filter(|candidate| architectures.is_empty() || architectures.contains(&candidate.architecture))
        .filter(|candidate| wanted.met_by(candidate))
        .map(|candidate| (candidate.name.to_owned(), candidate.name))
        .collect();
    types.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (types, next) = page(types, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("instanceTypeSet", "item", types, |xml, name| {
            xml.text("instanceType", name);
        })
        .optional("nextToken", next);
    }))
}

/// For one template: all versions, or those asked for. For all templates: `$Latest`, `$Default` or both, which must be asked
/// for.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeLaunchTemplateVersions.html>
fn describe_template_versions(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxResults", 200, 200)?;
    let versions = form.list("LaunchTemplateVersion");
    let one = template(state, form)?;
    if one.is_none() {
        if versions.is_empty() || state.shared.hides_templates {
            return Err(ApiError::client(
                "MissingParameter",
                "Either a launch template ID or a launch template name must be specified in the request",
            ));
        }
        if versions.iter().any(|version| !matches!(*version, "$Latest" | "$Default")) {
            return Err(invalid_value(
                "Only $Latest and $Default are valid versions of all launch templates",
            ));
        }
    }
    let templates = one.map_or_else(|| state.shared.templates.values().collect(), |one| vec![one]);
    let mut found: Vec<(String, (&Template, usize))> = Vec::new();
    for template in templates {
        let mut numbers: Vec<usize> = if versions.is_empty() {
            (1..=template.spec.versions.len()).collect()
        } else {
            versions.iter().map(|version| resolve(template, version)).collect::<Result<_, _>>()?
        };
        numbers.sort_unstable();
        numbers.dedup();
        let keyed = numbers.into_iter().map(|n| (format!("{} {n:010}", template.id), (template, n)));
        found.extend(keyed);
    }
    let (found, next) = page(found, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("launchTemplateVersionSet", "item", found, |xml, (template, number)| {
            template.write_version(number, xml);
        })
        .optional("nextToken", next);
    }))
}

fn template<'a>(state: &'a State, form: &Form) -> Result<Option<&'a Template>, ApiError> {
    if let Some(id) = form.get("LaunchTemplateId") {
        return state.shared.templates.get(id).map(Some).ok_or_else(|| {
            ApiError::client(
                "InvalidLaunchTemplateId.NotFound",
                format!("The specified launch template, with template ID {id}, does not exist."),
            )
        });
    }
    let Some(name) = form.get("LaunchTemplateName") else { return Ok(None) };
    state.shared.templates.values().find(|template| template.spec.name == name).map(Some).ok_or_else(|| {
        ApiError::client(
            "InvalidLaunchTemplateName.NotFoundException",
            format!("The specified launch template, with template name {name}, does not exist."),
        )
    })
}

fn resolve(template: &Template, version: &str) -> Result<usize, ApiError> {
    template.resolve(version).ok_or_else(|| {
        ApiError::client(
            "InvalidLaunchTemplateId.VersionNotFound",
            format!(
                "Could not find the specified version {version} for the launch template with ID {}.",
                template.id
            ),
        )
    })
}

/// By ids, where a missing one fails the call, or by a filter of ids, where it does not.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeImages.html>
fn describe_images(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let ids = form.list("ImageId");
    if let Some(malformed) = ids.iter().find(|id| !id.starts_with("ami-")) {
        return Err(ApiError::client("InvalidAMIID.Malformed", format!("Invalid id: \"{malformed}\"")));
    }
    if let Some(unknown) = ids.iter().find(|id| !state.shared.images.contains_key(**id)) {
        let text = format!("The image id '[{unknown}]' does not exist");
        return Err(ApiError::client("InvalidAMIID.NotFound", text));
    }
    let filters = Filter::all(form, "Filter", "Value");
    if let Some(unknown) = filters.iter().find(|filter| filter.name != "image-id") {
        return Err(invalid_value(format!("The filter '{}' is invalid", unknown.name)));
    }
    let images = state.shared.images.iter().filter(|(id, _)| {
        (ids.is_empty() || ids.contains(&id.as_str())) && filters.iter().all(|filter| filter.accepts(id))
    });
    Ok(Xml::build(|xml| {
        xml.list("imagesSet", "item", images, |xml, (id, architecture)| {
            xml.text("imageId", id).text("imageState", "available").text("architecture", architecture);
        });
    }))
}

/// By ids, tags, states and Capacity Reservations. Every instance is a reservation of its own, as in a real group.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html>
fn describe_instances(state: &State, form: &Form, now: Timestamp) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxResults", 1000, 1000)?;
    let ids = form.list("InstanceId");
    let filters = Filter::all(form, "Filter", "Value");
    let is_known = |name: &str| {
        matches!(name, "instance-id" | "instance-state-name" | "capacity-reservation-id")
            || name.starts_with("tag:")
    };
    if let Some(unknown) = filters.iter().find(|filter| !is_known(&filter.name)) {
        return Err(invalid_value(format!("The filter '{}' is invalid", unknown.name)));
    }
    let gone = state.shared.past.values().filter(|(_, at)| now.duration_since(*at) < SHOWN_WHEN_GONE);
    let there = state.groups.values().flat_map(|group| group.instances.values());
    let there = there.chain(state.shared.detached.values());
    let mut all: Vec<_> = there
        .chain(gone.map(|(instance, _)| instance))
        .map(|instance| (instance.id.clone(), instance))
        .collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    if let Some(unknown) = ids.iter().find(|id| !all.iter().any(|(known, _)| known == *id)) {
        return Err(ApiError::client(
            "InvalidInstanceID.NotFound",
            format!("The instance ID '{unknown}' does not exist"),
        ));
    }
    all.retain(|(id, instance)| {
        (ids.is_empty() || ids.contains(&id.as_str())) && filters.iter().all(|f| passes(state, instance, f))
    });
    let (instances, next) = page(all, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("reservationSet", "item", instances, |xml, instance| {
            xml.text("reservationId", instance.id.replacen("i-", "r-", 1)).text("ownerId", ACCOUNT).list(
                "instancesSet",
                "item",
                [instance],
                |xml, instance| {
                    write_instance(xml, instance);
                    xml.optional("capacityReservationId", state.events.reservation(&instance.id));
                },
            );
        })
        .optional("nextToken", next);
    }))
}

fn passes(state: &State, instance: &Instance, filter: &Filter) -> bool {
    if filter.name == "capacity-reservation-id" {
        return state.events.reservation(&instance.id).is_some_and(|id| filter.accepts(id));
    }
    match filter.name.strip_prefix("tag:") {
        Some(key) => instance.tags.get(key).is_some_and(|value| filter.accepts(value)),
        None if filter.name == "instance-id" => filter.accepts(&instance.id),
        None => filter.accepts(instance.power.name()),
    }
}

fn write_instance(xml: &mut Xml, instance: &Instance) {
    let power = instance.power;
    let [a, b, c, d] = instance.address;
    let architecture = instance_types::find(&instance.instance_type).map(|known| known.architecture);
    xml.text("instanceId", &instance.id)
        .text("imageId", &instance.image)
        .inside("instanceState", |xml| {
            xml.text("code", power.code()).text("name", power.name());
        })
        .text("privateDnsName", private_dns_name(instance.address))
        .text("privateIpAddress", format!("{a}.{b}.{c}.{d}"))
        .text("instanceType", &instance.instance_type)
        .time("launchTime", instance.launched)
        .inside("placement", |xml| {
            xml.text("availabilityZone", &instance.zone).text("tenancy", "default");
        })
        .optional("architecture", architecture)
        .optional("instanceLifecycle", instance.spot.then_some("spot"))
        .list("tagSet", "item", &instance.tags, |xml, (key, value)| {
            xml.text("key", key).text("value", value);
        });
}

pub(super) fn invalid_value(message: impl Into<String>) -> ApiError {
    ApiError::client("InvalidParameterValue", message)
}
