//! Which options are best: criteria one after the other, each of which leaves what is best by it. Pure.

use std::fmt::Write as _;

use super::standing::Standing;
use crate::provider::error::excerpt;
use crate::words::words;

/// The criteria in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy(Vec<Rule>);

/// A criterion, and how much worse than the best still counts as good as it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// By what options are told apart.
    pub criterion: Criterion,
    /// A share: 0.05 for five per cent.
    pub tolerance: f64,
}

words! {
    /// By what options are told apart. Less is better by each. In the order that counts if no policy is given.
    pub Criterion {
        /// Whether all that the group could launch has lately been refused for want of capacity.
        Capacity = "capacity",
        /// The price of the new nodes for each pod that finds room, USD an hour.
        Price = "price",
        /// How many of the group's instances AWS has taken back in the last day, for each that it has.
        Interruptions = "interruptions",
        /// How many nodes there are in the group's zones, for each of them.
        ZoneBalance = "zone-balance",
        /// How many nodes would be added.
        FewestNodes = "fewest-nodes",
    }
}

impl Criterion {
    /// What an option has by it. `None`: nobody knows.
    pub fn of(self, standing: &Standing) -> Option<f64> {
        match self {
            Self::Capacity => Some(f64::from(u8::from(standing.is_refused))),
            Self::Price => {
                let nodes = f64::from(standing.nodes.max(1));
                Some(standing.price? * nodes / standing.pods.max(1) as f64)
            }
            Self::Interruptions => Some(standing.interruptions),
            Self::ZoneBalance => standing.nodes_a_zone,
            Self::FewestNodes => Some(f64::from(standing.nodes)),
        }
    }
}

/// A policy that cannot be used: a line of it, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadPolicy {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl Default for Policy {
    fn default() -> Self {
        let tolerance = |criterion| if criterion == Criterion::Price { 0.05 } else { 0.0 };
        Self(Criterion::ALL.map(|criterion| Rule { criterion, tolerance: tolerance(criterion) }).to_vec())
    }
}

impl std::str::FromStr for Policy {
    type Err = BadPolicy;

    /// A criterion a line, what counts as equal after it as a percentage; `#` begins a comment.
    fn from_str(text: &str) -> Result<Self, BadPolicy> {
        let mut rules: Vec<Rule> = Vec::new();
        for (line, written) in (1..).zip(text.lines()) {
            let bad = |why: String| BadPolicy { line, why };
            let mut words = written.split('#').next().unwrap_or_default().split_whitespace();
            let Some(name) = words.next() else { continue };
            let known = || Criterion::ALL.map(Criterion::as_str).join(", ");
            let criterion = Criterion::ALL.into_iter().find(|criterion| criterion.as_str() == name);
            let criterion =
                criterion.ok_or_else(|| bad(format!("{} is none of {}", quoted(name), known())))?;
            if rules.iter().any(|rule| rule.criterion == criterion) {
                return Err(bad(format!("{criterion} is there twice")));
            }
            let tolerance = words.next().map_or(Some(0.0), percentage);
            let wrong = || bad("after a criterion comes nothing or a percentage, like 5%".to_owned());
            rules.push(Rule { criterion, tolerance: tolerance.ok_or_else(wrong)? });
            if words.next().is_some() {
                return Err(wrong());
            }
        }
        if rules.is_empty() {
            return Err(BadPolicy { line: 1, why: "it has no criterion".to_owned() });
        }
        Ok(Self(rules))
    }
}

fn quoted(word: &str) -> String {
    // Escaped first: each character may be ten.
    format!("\"{}\"", word.escape_debug().take(40).collect::<String>())
}

fn percentage(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

/// What was chosen, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Positions of the best options among those that were given, in their order: at least one where there was one.
    pub best: Vec<usize>,
    /// The criteria that have left something out, with how many options were left after each.
    pub decided: Vec<(Criterion, usize)>,
}

/// Chooses among options.
pub fn choose(policy: &Policy, options: &[Standing]) -> Choice {
    let mut choice = Choice { best: (0..options.len()).collect(), decided: Vec::new() };
    for rule in &policy.0 {
        let of = |&at: &usize| rule.criterion.of(&options[at]).filter(|value| value.is_finite());
        // A criterion that is known of no option excludes none.
        let Some(least) = choice.best.iter().filter_map(of).min_by(f64::total_cmp) else { continue };
        let most = least + least.abs() * rule.tolerance;
        let before = choice.best.len();
        choice.best.retain(|at| of(at).is_some_and(|value| value <= most));
        if choice.best.len() < before {
            choice.decided.push((rule.criterion, choice.best.len()));
        }
    }
    choice
}

/// Options in a line of the log: a cluster may have hundreds of groups.
const TOLD: usize = 8;

/// The names of the best options.
pub fn names(options: &[Standing], choice: &Choice) -> String {
    list(choice.best.iter().copied(), ",", |at| excerpt(options[at].group.as_str()))
}

/// The choice in one line: each option with what it has, the best first.
pub fn explain(options: &[Standing], choice: &Choice) -> String {
    let others = (0..options.len()).filter(|at| choice.best.binary_search(at).is_err());
    list(choice.best.iter().copied().chain(others), "; ", |at| figures(&options[at]))
}

/// The first of many.
fn list(mut all: impl Iterator<Item = usize>, separator: &str, told: impl Fn(usize) -> String) -> String {
    let mut text = all.by_ref().take(TOLD).map(told).collect::<Vec<_>>().join(separator);
    let more = all.count();
    if more > 0 {
        let _ = write!(text, "{separator}and {more} more");
    }
    text
}

/// An option with what is known of it.
fn figures(option: &Standing) -> String {
    let Standing { group, nodes, pods, .. } = option;
    let mut text = format!("{}: {nodes} nodes for {pods} pods", excerpt(group.as_str()));
    for criterion in Criterion::ALL {
        let _ = match (criterion, criterion.of(option)) {
            (Criterion::Capacity, Some(1.0)) => write!(text, ", lately refused for want of capacity"),
            (Criterion::Price, Some(price)) => write!(text, ", {price:.4} USD/h a pod"),
            (Criterion::Price, None) => write!(text, ", price unknown"),
            (Criterion::Interruptions, Some(some)) if some > 0.0 => {
                write!(text, ", {some:.2} interruptions an instance in a day")
            }
            (Criterion::ZoneBalance, Some(nodes)) => write!(text, ", {nodes:.1} nodes a zone"),
            _ => Ok(()),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn option(group: &str, price: Option<f64>) -> Standing {
        Standing { group: group.into(), nodes: 1, pods: 4, price, ..Standing::default() }
    }

    fn chosen(policy: &str, options: &[Standing]) -> Vec<String> {
        let policy = policy.parse().expect("a policy");
        choose(&policy, options).best.iter().map(|&at| options[at].group.to_string()).collect()
    }

    #[test]
    fn criteria_count_in_the_order_of_the_policy() {
        let dear = Standing { nodes_a_zone: Some(1.0), ..option("dear", Some(0.4)) };
        let cheap = Standing { nodes_a_zone: Some(5.0), ..option("cheap", Some(0.1)) };
        let options = [dear, cheap];
        assert_eq!(chosen("price\nzone-balance", &options), ["cheap"]);
        assert_eq!(chosen("zone-balance\nprice", &options), ["dear"]);
        assert_eq!(
            chosen("fewest-nodes", &options),
            ["dear", "cheap"],
            "cluster-autoscaler's next expander decides"
        );
    }

    #[test]
    fn by_default_refused_capacity_counts_first_then_the_price_then_the_rest() {
        let refused = Standing { is_refused: true, ..option("refused", Some(0.01)) };
        let taken_back = Standing { interruptions: 0.5, ..option("taken back", Some(0.100)) };
        let good = option("good", Some(0.104));
        let dear = option("dear", Some(0.2));
        let choice = |options: &[Standing]| {
            let choice = choose(&Policy::default(), options);
            let decided: Vec<_> =
                choice.decided.iter().map(|(criterion, left)| (criterion.as_str(), *left)).collect();
            (choice.best.clone(), decided)
        };
        let options = [refused.clone(), taken_back, good, dear];
        let expected = vec![("capacity", 3), ("price", 2), ("interruptions", 1)];
        assert_eq!(choice(&options), (vec![2], expected), "4 % are no reason");
        assert_eq!(choice(&[refused]), (vec![0], vec![]), "what is alone is best");
        assert_eq!(choice(&[]), (vec![], vec![]));
    }

    #[test]
    fn the_price_is_that_of_all_new_nodes_for_each_pod() {
        let many = Standing { nodes: 4, pods: 4, ..option("many", Some(0.1)) };
        let one = Standing { nodes: 1, pods: 4, ..option("one", Some(0.3)) };
        assert_eq!(chosen("price", &[many, one]), ["one"]);
    }

    #[test]
    fn a_price_that_nobody_knows_loses_to_one_and_counts_for_nothing_alone() {
        let options = [option("unknown", None), option("known", Some(9.0)), option("broken", Some(f64::NAN))];
        assert_eq!(chosen("price", &options), ["known"]);
        assert_eq!(chosen("price", &options[..1]), ["unknown"]);
    }

    #[test]
    fn a_policy_that_is_wrong_is_told_by_its_line() {
        let told = |text: &str| text.parse::<Policy>().map_err(|error| error.to_string());
        let rules = told("# ours\ncapacity\n\nprice 5% # near enough\n").expect("good").0;
        let expected = [(Criterion::Capacity, 0.0), (Criterion::Price, 0.05)];
        assert_eq!(rules.iter().map(|rule| (rule.criterion, rule.tolerance)).collect::<Vec<_>>(), expected);
        for (text, part) in [
            ("price\ncheapest", "line 2: \"cheapest\" is none of capacity, price"),
            ("price\nprice 5%", "line 2: price is there twice"),
            ("price five", "line 1: after a criterion comes nothing or a percentage"),
            ("price 5% 6%", "line 1"),
            ("price -1%", "line 1"),
            ("price NaN%", "line 1"),
            ("# nothing", "no criterion"),
            ("", "no criterion"),
        ] {
            let error = told(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_documented_policies_are_good_and_the_documented_order_is_the_default() {
        let document = include_str!("../../../docs/expander.md");
        let blocks = document.split("\n```\n").skip(1).step_by(2);
        let policy = blocks.into_iter().find(|block| block.contains("price 10%")).expect("an example");
        assert_eq!(policy.parse::<Policy>().expect("good").0.len(), 4);
        let names = Criterion::ALL.map(|criterion| format!("`{criterion}`")).join(", ");
        assert!(document.contains(&names), "{names}");
    }

    #[test]
    fn an_explanation_has_every_figure_and_a_bound() {
        let mut options: Vec<_> = (0..20).map(|n| option(&format!("g{n}"), Some(0.4))).collect();
        options[1] = Standing {
            is_refused: true,
            nodes_a_zone: Some(2.5),
            interruptions: 0.25,
            ..option("hard", None)
        };
        let choice = Choice { best: vec![2], decided: Vec::new() };
        let text = explain(&options, &choice);
        assert!(text.starts_with("g2: 1 nodes for 4 pods, 0.1000 USD/h a pod; g0:"), "{text}");
        for part in [
            "hard: 1 nodes for 4 pods, lately refused for want of capacity, price unknown, 0.25 interruptions an instance in a day, 2.5 nodes a zone",
            "; and 12 more",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_line_of_the_log_is_short_whatever_was_asked() {
        let options: Vec<_> =
            (0..4_096).map(|n| option(&format!("{n}{}", "n".repeat(1_000)), None)).collect();
        let choice = choose(&Policy::default(), &options);
        assert_eq!(choice.best.len(), 4_096);
        for text in [names(&options, &choice), explain(&options, &choice)] {
            assert!(text.len() < 4_000 && text.ends_with("and 4088 more"), "{text}");
        }
    }

    fn some_option() -> impl Strategy<Value = Standing> {
        let price = prop::option::of(prop_oneof![0.0..10.0, Just(f64::NAN), Just(f64::INFINITY), Just(-1.0)]);
        let zone = prop::option::of(0.0..100.0);
        (any::<i32>(), 0_usize..5, price, any::<bool>(), 0.0..2.0, zone).prop_map(
            |(nodes, pods, price, is_refused, interruptions, nodes_a_zone)| Standing {
                group: "g".into(),
                nodes,
                pods,
                price,
                is_refused,
                interruptions,
                nodes_a_zone,
            },
        )
    }

    proptest! {
        #[test]
        fn of_any_options_at_least_one_is_chosen(options in prop::collection::vec(some_option(), 1..12)) {
            let choice = choose(&Policy::default(), &options);
            prop_assert!(!choice.best.is_empty());
            prop_assert!(choice.best.iter().all(|at| *at < options.len()));
            prop_assert!(choice.best.is_sorted());
        }

        #[test]
        fn any_text_is_a_policy_or_told_in_a_short_line(text in ".{0,200}") {
            if let Err(error) = text.parse::<Policy>() {
                prop_assert!(error.to_string().len() < 300);
            }
        }
    }
}
