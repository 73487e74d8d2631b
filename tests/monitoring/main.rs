//! What is delivered for Prometheus and Grafana asks for metrics that exist, and every alert has its section of the runbook.

mod promql;
mod table;

use std::collections::BTreeSet;

use ebbtide::scale_in::events::Reason;
use serde_json::Value;

use crate::promql::unknown;

const RUNBOOK: &str = include_str!("../../docs/runbook.md");

fn groups() -> Vec<Value> {
    let file = include_str!("../../deploy/alerts/ebbtide.rules.yaml");
    let file: Value = serde_saphyr::from_str(file).expect("YAML");
    file["groups"].as_array().expect("groups").clone()
}

fn rules() -> Vec<Value> {
    groups().iter().flat_map(|group| group["rules"].as_array().expect("rules").clone()).collect()
}

/// All expressions of the dashboard, with the titles of their panels.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../deploy/dashboards/ebbtide.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").clone();
    let targets = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(|target| (panel["title"].clone(), target["expr"].clone()))
    });
    let text = |value: Value| value.as_str().expect("a text").to_owned();
    targets.map(|(title, expression)| (text(title), text(expression))).collect()
}

#[test]
fn every_alert_asks_for_metrics_that_exist() {
    let table = table::documented();
    for rule in rules() {
        let expression = rule["expr"].as_str().expect("an expression");
        assert_eq!(unknown(expression, &table), [""; 0], "{}", rule["alert"]);
    }
}

#[test]
fn every_panel_asks_for_metrics_that_exist_and_every_metric_has_a_panel() {
    let table = table::documented();
    let queries = queries();
    for (title, expression) in &queries {
        assert_eq!(unknown(expression, &table), [""; 0], "{title}");
        assert!(expression.contains("job=~\"$job\""), "{title} is of the job that was chosen");
    }
    let shown: BTreeSet<_> =
        queries.iter().flat_map(|(_, expression)| promql::metrics(expression, &table)).collect();
    let hidden: Vec<_> = table.keys().filter(|name| !shown.contains(*name)).collect();
    assert_eq!(hidden, [""; 0]);
}

#[test]
fn every_alert_says_what_it_means_and_has_its_section_of_the_runbook() {
    let mut named = Vec::new();
    for rule in rules() {
        let alert = rule["alert"].as_str().expect("a name").to_owned();
        for annotation in ["summary", "description"] {
            let text = rule["annotations"][annotation].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{alert}: {annotation}");
        }
        let severity = rule["labels"]["severity"].as_str();
        assert!(matches!(severity, Some("critical" | "warning")), "{alert}: {severity:?}");
        let section = format!("docs/runbook.md#{}", alert.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], section);
        named.push(alert);
    }
    let (mut sections, mut texts) = (Vec::new(), RUNBOOK.split("\n## "));
    texts.next();
    for text in texts {
        let (title, text) = text.split_once('\n').expect("a title");
        for part in ["**Means.**", "**Harms.**", "**Look.**", "**Do.**"] {
            assert_eq!(text.matches(part).count(), 1, "{title}: {part}");
        }
        sections.push(title.to_owned());
    }
    assert_eq!(sections, named, "in the same order");
}

#[test]
fn every_alert_is_tried_by_a_test_of_promtools() {
    let tests = include_str!("alerts.yaml");
    for rule in rules() {
        let alert = rule["alert"].as_str().expect("a name");
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:")), "{alert} is to fire");
        assert!(tests.contains(&format!("alertname: {alert} }}")), "{alert} is to be silent");
    }
}

#[test]
fn heartbeats_are_looked_at_as_often_as_in_their_test() {
    let tests: Value = serde_saphyr::from_str(include_str!("alerts.yaml")).expect("YAML");
    let groups = groups();
    let group =
        groups.iter().find(|group| group["name"] == "ebbtide-heartbeats").expect("a group of their own");
    assert_eq!(group["interval"], tests["evaluation_interval"], "which promtool goes by");
}

#[test]
fn the_runbook_names_events_and_metrics_that_exist() {
    let table = table::documented();
    for code in RUNBOOK.split('`').skip(1).step_by(2).filter(|code| code.contains("ebbtide_")) {
        assert_eq!(unknown(code, &table), [""; 0]);
    }
    let reasons = Reason::ALL.map(|reason| reason.as_str());
    for word in RUNBOOK.split('`').filter(|word| word.starts_with("ScaleIn")) {
        assert!(reasons.contains(&word), "{word}");
    }
}

#[test]
fn a_query_for_an_unknown_metric_label_or_value_is_reported() {
    let table = table::documented();
    for (expression, expected) in [
        ("sum(rate(ebbtide_nothing_total[5m]))", "ebbtide_nothing_total"),
        ("ebbtide_leader_total", "ebbtide_leader_total"),
        ("ebbtide_notices_total{reason=\"taken\"}", "ebbtide_notices_total: reason"),
        ("ebbtide_notices_total{outcome=\"eaten\"}", "ebbtide_notices_total: outcome=eaten"),
        ("ebbtide_notices_total{outcome!~\"taken|eaten\"}", "ebbtide_notices_total: outcome=eaten"),
        ("sum by (cause) (ebbtide_notices_total)", "by cause"),
    ] {
        assert_eq!(unknown(expression, &table), [expected]);
    }
    let good = "histogram_quantile(0.9, sum by (le, phase) (rate(ebbtide_scale_in_phase_duration_seconds_bucket{job=~\"$job\"}[1h])))";
    assert_eq!(unknown(good, &table), [""; 0]);
}
