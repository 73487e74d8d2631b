//! `ebbtide prices`: what a node of each group costs, and where that is from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::groups::Groups;
use super::output::{columns, document, lasted};
use super::{CommandError, Style};
use crate::aws::Aws;
use crate::clock::{Clock, elapsed};
use crate::cluster::Nodes;
use crate::config::{Config, Output, PriceSource};
use crate::groups::{self, Group, Snapshot};
use crate::k8s::GroupName;
use crate::prices::fit::{Parts, Residuals};
use crate::prices::{Price, PricedNode, Prices, Reader, Source, node, table};
use crate::provider::expander::policy::{BadPolicy, Policy, choose, explain};
use crate::provider::expander::proto::{Option as Offered, Pod};
use crate::provider::expander::standing::{Known, standings};

/// Older than what is read here ever gets.
const NO_AGE: Duration = Duration::from_hours(1);

/// Prices as they are now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The region.
    pub region: String,
    /// `USD`.
    pub currency: &'static str,
    /// The day of the built-in table's newest prices.
    pub table_of: &'static str,
    /// What a vCPU, a GiB and a GPU cost an hour, which is what pods are charged.
    pub parts: PartPrices,
    /// The groups.
    pub groups: Vec<GroupPrice>,
    /// What of AWS's prices could not be read, and what that means.
    pub notes: Vec<String>,
    /// Which of them would grow, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Explained>,
}

/// Which group the expander would grow if each could take the same pods on one node, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// The best: several that are as good as each other.
    pub best: Vec<String>,
    /// The criteria that left something out, in their order, and how many groups each left.
    pub decided_by: Vec<Decided>,
    /// What is known of the best eight, as the log of `serve` has it.
    pub why: String,
    /// What nobody but the running program or cluster-autoscaler knows.
    pub not_known: [&'static str; 3],
}

/// A criterion that left something out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decided {
    /// Its name in a policy.
    pub criterion: &'static str,
    /// How many groups were left after it.
    pub left: usize,
}

/// What an explanation leaves out.
const NOT_KNOWN: [&str; 3] = [
    "launches that were refused for want of capacity in the last 15 minutes",
    "spot interruptions of the last day",
    "which pods wait, which groups they fit, and on how many nodes",
];

/// What parts of machines cost an hour, and how well they add up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartPrices {
    /// A vCPU.
    pub vcpu: f64,
    /// A GiB of memory.
    pub gib: f64,
    /// A GPU.
    pub gpu: f64,
    /// From so many machines.
    pub machines: usize,
    /// Half of them are off by no more than this share of their price.
    pub median_error: f64,
    /// Nine of ten are off by no more than this.
    pub ninth_decile_error: f64,
}

/// What the next node of a group costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupPrice {
    /// The group.
    pub name: String,
    /// The instance type that is priced; `null`: the group has no template.
    pub instance_type: Option<String>,
    /// What part of such nodes is spot, 0 to 1.
    pub spot_share: f64,
    /// USD per hour; `null`: nothing is known.
    pub per_hour: Option<f64>,
    /// The same for each vCPU that it gives to pods.
    pub per_vcpu: Option<f64>,
    /// The same for each GiB that it gives to pods.
    pub per_gib: Option<f64>,
    /// Where it is from.
    pub source: Option<Source>,
    /// Since AWS told it; `null`: it did not.
    pub age_seconds: Option<u64>,
}

/// Reads the groups and, unless the table is to do, AWS's prices.
/// `explain`: and which of them the expander would choose.
pub async fn look(aws: &Aws, config: &Config, explain: bool, clock: &Clock) -> Result<Report, CommandError> {
    let policy = if explain { Some(policy(config.expander_policy.as_deref())?) } else { None };
    let read = Groups::read(aws, config, Arc::new(Nodes::default()), clock).await?;
    let snapshot = read.snapshot.clone();
    let asks = config.prices != Some(PriceSource::Table);
    let prices = Arc::new(Prices::of(aws.region(), asks));
    if asks {
        let groups = Arc::new(groups::Groups::new(NO_AGE));
        groups.publish(read.snapshot);
        let mut reader = Reader::new(aws.clone(), groups, Arc::clone(&prices), clock.clone());
        Box::pin(reader.refresh()).await;
    }
    let now = clock.now();
    let (parts, residuals) = (Parts::of(aws.region()), Residuals::of(aws.region()));
    Ok(Report {
        region: aws.region().to_owned(),
        currency: "USD",
        table_of: table::date(),
        parts: PartPrices {
            vcpu: parts.vcpu,
            gib: parts.gib,
            gpu: parts.gpu,
            machines: residuals.machines,
            median_error: residuals.median,
            ninth_decile_error: residuals.ninth_decile,
        },
        groups: snapshot.groups.values().map(|group| priced(group, &prices, now)).collect(),
        notes: notes(&prices),
        choice: policy.map(|policy| chosen(&snapshot, &prices, &policy, now)),
    })
}

fn notes(prices: &Prices) -> Vec<String> {
    let book = prices.book();
    let spot = book.spot_failing.as_ref().map(|failing| {
        format!("spot prices could not be read, so that spot costs what On-Demand does: {}", failing.words)
    });
    let list = book.list_failing.as_ref().map(|failing| {
        format!("the Price List could not be read, so that the built-in table is used: {}", failing.words)
    });
    spot.into_iter().chain(list).collect()
}

/// The policy of this file; without one the default. Errors: [`CommandError::Policy`].
fn policy(file: Option<&Path>) -> Result<Policy, CommandError> {
    let Some(file) = file else { return Ok(Policy::default()) };
    let wrong = |source| CommandError::Policy { file: file.to_owned(), source };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.into()))?;
    text.parse().map_err(|error: BadPolicy| wrong(error.into()))
}

fn chosen(snapshot: &Snapshot, prices: &Prices, policy: &Policy, now: Timestamp) -> Explained {
    let price = |next: &PricedNode<'_>| Some(prices.of_node(next, now)?.per_hour);
    let known = Known { snapshot, refused: BTreeSet::new(), interruptions: BTreeMap::new(), price: &price };
    let option = |group: &GroupName| Offered {
        node_group_id: group.to_string(),
        node_count: 1,
        pod: vec![Pod {}],
        ..Offered::default()
    };
    let options: Vec<_> = snapshot.groups.keys().map(option).collect();
    let options = standings(&options, &known);
    let choice = choose(policy, &options);
    let decided = choice.decided.iter().map(|&(of, left)| Decided { criterion: of.as_str(), left });
    Explained {
        best: choice.best.iter().map(|&at| options[at].group.to_string()).collect(),
        decided_by: decided.collect(),
        why: explain(&options, &choice),
        not_known: NOT_KNOWN,
    }
}

fn priced(group: &Group, prices: &Prices, now: Timestamp) -> GroupPrice {
    let labels = node::labels(group);
    let next = PricedNode::of(&labels, Some(group), true);
    let price = prices.of_node(&next, now);
    let size = next.size.unwrap_or_default();
    let per = |amount: f64| price.filter(|_| amount > 0.0).map(|price| price.per_hour / amount);
    GroupPrice {
        name: group.asg.name.to_string(),
        instance_type: Some(next.instance_type.to_owned()).filter(|name| !name.is_empty()),
        spot_share: next.spot_share,
        per_hour: price.map(|price| price.per_hour),
        per_vcpu: per(size.vcpus),
        per_gib: per(size.gib),
        source: price.map(|price| price.source),
        age_seconds: price.and_then(|Price { told_at, .. }| Some(elapsed(told_at?, now).as_secs())),
    }
}

/// Writes it down.
pub fn render(report: &Report, output: Output, style: Style) -> String {
    if let Some(text) = document(output, report) {
        return text;
    }
    let money = |price: Option<f64>| price.map_or("-".to_owned(), |price| format!("{price:.4}"));
    let header =
        ["GROUP", "TYPE", "SPOT", "USD/HOUR", "PER VCPU", "PER GIB", "SOURCE", "AGE"].map(str::to_owned);
    let rows = report.groups.iter().map(|one| {
        let source =
            one.source.and_then(|source| Some(serde_json::to_value(source).ok()?.as_str()?.to_owned()));
        let age = match one.source {
            Some(Source::table | Source::near | Source::fit) => report.table_of.to_owned(),
            _ => one.age_seconds.map_or("-".to_owned(), lasted),
        };
        vec![
            one.name.clone(),
            one.instance_type.clone().unwrap_or("-".to_owned()),
            format!("{:.0} %", one.spot_share * 100.0),
            money(one.per_hour),
            money(one.per_vcpu),
            money(one.per_gib),
            source.unwrap_or("-".to_owned()),
            age,
        ]
    });
    let rows: Vec<_> = std::iter::once(header.to_vec()).chain(rows).collect();
    let PartPrices { vcpu, gib, gpu, machines, median_error, ninth_decile_error } = report.parts;
    let pods = format!(
        "Pods in {}: {vcpu:.4} a vCPU, {gib:.4} a GiB, {gpu:.2} a GPU. Of {machines} machines half are off by at most {:.0} %, nine \
         of ten by {:.0} %.",
        report.region,
        median_error * 100.0,
        ninth_decile_error * 100.0
    );
    let choice = report.choice.as_ref().map(render_choice).unwrap_or_default();
    let notes: Vec<_> = report.notes.iter().map(|note| format!("Note: {note}\n")).collect();
    format!("{}\n{}\n{}{choice}", columns(&rows), style.paint(2, &pods), notes.concat())
}

fn render_choice(Explained { best, decided_by, why, not_known }: &Explained) -> String {
    let by = decided_by.iter().map(|Decided { criterion, left }| format!("{criterion} leaves {left}"));
    let by = if decided_by.is_empty() {
        "nothing tells them apart".to_owned()
    } else {
        by.collect::<Vec<_>>().join(", ")
    };
    let (best, why, not_known) = (best.join(", "), why.replace("; ", "\n  "), not_known.join("; "));
    format!("\nThe expander would grow {best}: {by}.\n  {why}\nNot known here: {not_known}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::chain;

    #[test]
    fn a_policy_that_cannot_be_read_is_an_error_that_names_its_file() {
        assert_eq!(policy(None).expect("the default"), Policy::default());
        let no_policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        for (file, why) in [(Path::new("/nowhere/policy"), "No such file"), (&no_policy, "line 1")] {
            let error = policy(Some(file)).expect_err("no policy");
            let line = chain(&error);
            assert!(line.contains(&file.display().to_string()) && line.contains(why), "{line}");
        }
    }
}
