//! The report as text, picture and JSON, and its progress lines.

use quick_xml::events::Event as Xml;

use super::*;

const PAGE: &str = "    0.0  A slow workload <and> a tight budget

Nodes that came up (seconds after the launch)
                                         launched at  in service  registered  first workload
  ip-10-0-0-5             web                   10.0        30.0        40.0            50.0

ip-10-0-0-5  i-0abc12…ef0  group web (hook)  cause autoscaler    48.3 s
     0.0  DeleteNodes accepted: cordoned, tainted
     0.1  taken out of the group: desired capacity goes down
     0.1  hook ebbtide holds the instance
     0.2  web-7f9c-a asked to go (grace 60 s)
     0.2  web-7f9c-b refused 4 times by budget web until 12.3 s
     0.2  ScaleInBlocked (4 times): disruption budget default/web: needs 1
    12.4  web-7f9c-a exited
    12.5  web-7f9c-b asked to go (grace 60 s)
    15.0  2 heartbeats of hook ebbtide until 30.0 s
    41.2  web-7f9c-b exited
    41.3  last workload exited; DaemonSet pods have 5.0 s
    46.3  DaemonSet pods have had their time
    46.3  instance released: hook ebbtide completed, CONTINUE
    48.3  instance gone
    53.3  Node removed
                           ├ Draining ─────────────────────────────┼Flus┼R┤
  web-7f9c-a               ░░░░░░░░░░░┤                                            12.4
  web-7f9c-b               ━━━━━━━━━━━━░░░░░░░░░░░░░░░░░░░░░░░░░░░┤                41.2
  logging/agent-2xk9p      ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┤         48.3  DaemonSet

Verdict: passed
  ok    workloads cut short                             0  of 2 workload pods
  ok    log lines lost                                  0  of 120 written, 120 shipped
  ok    DaemonSet pods gone before last workload        0  of 1 on nodes with workloads
  ok    instances released before last workload         0  of 1 released
  ok    hooks timed out                                 0  of 1 instance held
  ok    surplus terminations or decrements              0  1 terminated, 1 decrement of 1
  ok    healthy instances ended unasked                 0  of 1 ended
  ok    scale-ins not finished                          0  of 1
  ok    slowest: last exit to flush began         0.050 s  1 node, slowest ip-10-0-0-5
  ok    GETs of a pod                                   0  of 0 requests
";

#[test]
fn the_report_of_the_sample_scenario_is_the_recorded_page() {
    assert_eq!(text(&told().report(), false), PAGE);
}

#[test]
fn no_line_is_wider_than_a_hundred_columns() {
    let mut scenario = told();
    scenario.said(9_000, "ScaleInWaiting", &"very ".repeat(100));
    scenario.runs(3_000, &format!("a-namespace/{}", "long-".repeat(30)));
    for line in text(&scenario.report(), false).lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
}

#[test]
fn colours_come_only_on_a_terminal() {
    let report = told().report();
    assert!(!text(&report, false).contains('\u{1b}'));
    assert!(text(&report, true).contains("\u{1b}[32m"));
}

/// The texts of a document, which must be well-formed.
fn texts(document: &str) -> Vec<String> {
    let mut reader = quick_xml::Reader::from_str(document);
    let mut texts = Vec::new();
    let mut current = String::new();
    let mut depth = 0;
    loop {
        match reader.read_event().expect("well-formed") {
            Xml::Start(_) => {
                depth += 1;
                current.clear();
            }
            Xml::End(_) => {
                depth -= 1;
                texts.push(std::mem::take(&mut current));
            }
            Xml::Text(text) => current.push_str(&text),
            Xml::GeneralRef(name) => {
                let name = format!("&{};", &*name);
                current.push_str(&quick_xml::escape::unescape(&name).expect("a known entity"));
            }
            Xml::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0, "every element is closed");
    texts
}

#[test]
fn the_picture_is_well_formed_and_names_every_pod() {
    let mut scenario = told();
    scenario.facts.program = vec![(at(20_000), Program::Killed), (at(22_000), Program::Restarted)];
    scenario.runs(3_000, "evil/<script>&\"'\u{1}").cut(48_300, "evil/<script>&\"'\u{1}", Cut::PowerOff);
    let report = scenario.report();
    let picture = svg(&report);
    let texts = texts(&picture);
    for pod in
        ["web-7f9c-a", "web-7f9c-b", "logging/agent-2xk9p", "evil/<script>&\"'", "killed", "lifecycle hook"]
    {
        assert!(texts.iter().any(|text| text.trim() == pod), "{pod} is missing");
    }
    assert!(texts.iter().any(|text| text.contains("A slow workload <and> a tight budget")));
    assert!(texts.iter().any(|text| text == "Verdict: FAILED"));
    for word in ["<script", "http://", "https://", "NaN", "inf"] {
        let body = picture.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(!body.contains(word), "{word} has no place in it");
    }
}

#[test]
fn each_node_has_a_picture_of_its_own() {
    let pictures = pictures(&told().report());
    let names: Vec<&str> = pictures.iter().map(|picture| picture.name.as_str()).collect();
    assert_eq!(names, ["1-autoscaler"]);
    let texts = texts(&pictures[0].svg);
    for text in ["web-7f9c-a", "Draining", "Flushing", "lifecycle hook", "completed"] {
        assert!(texts.iter().any(|found| found == text), "{text} is missing");
    }
    assert!(!texts.iter().any(|text| text.starts_with("Verdict")));
}

#[test]
fn a_picture_of_nothing_is_well_formed() {
    assert!(texts(&svg(&Scenario::default().report())).iter().any(|text| text.starts_with("Verdict")));
    assert!(text(&Scenario::default().report(), false).starts_with("Verdict: FAILED"));
}

#[test]
fn a_program_reads_the_same_from_json() {
    let value: serde_json::Value = serde_json::from_str(&json(&told().report())).expect("JSON");
    assert_eq!(value["nodes"][0]["took"], 48.3);
    assert_eq!(value["nodes"][0]["lines"][0]["kind"], "began");
    assert_eq!(value["nodes"][0]["phases"][1]["phase"], "Flushing");
    assert_eq!(value["nodes"][0]["pods"][0]["end"], "exited");
    assert_eq!(value["verdict"]["checks"][0]["found"], 0);
    assert_eq!(value["verdict"]["checks"][8]["found"], 0.05);
}

const PROGRESS: [&str; 18] = [
    "  -90.0  web: i-0abc12…ef0 launched (m5.large, us-east-1a)",
    "  -50.0  ip-10-0-0-5 registered",
    "    0.0  ip-10-0-0-5 draining (cause autoscaler)",
    "    0.1  web: i-0abc12…ef0 goes: terminated on request, desired capacity goes down",
    "    0.1  web: i-0abc12…ef0 held by hook ebbtide",
    "    0.2  web-7f9c-a asked to go (grace 60 s)",
    "    0.2  ip-10-0-0-5 disruption budget default/web: needs 1",
    "    4.2  ip-10-0-0-5 disruption budget default/web: needs 1",
    "    8.3  ip-10-0-0-5 disruption budget default/web: needs 1",
    "   12.3  ip-10-0-0-5 disruption budget default/web: needs 1",
    "   12.4  web-7f9c-a exited on ip-10-0-0-5",
    "   12.5  web-7f9c-b asked to go (grace 60 s)",
    "   41.2  web-7f9c-b exited on ip-10-0-0-5",
    "   41.3  ip-10-0-0-5 flushing: the workloads have left, DaemonSet pods have their time",
    "   46.3  ip-10-0-0-5 releasing the instance",
    "   46.3  web: i-0abc12…ef0 let go, hook ebbtide completed, CONTINUE",
    "   48.3  web: i-0abc12…ef0 gone",
    "   53.3  ip-10-0-0-5 removed",
];

#[test]
fn progress_is_told_in_lines_that_matter() {
    let scenario = told();
    let mut told: Vec<(Timestamp, String)> = scenario
        .aws
        .iter()
        .filter_map(|entry| Some((entry.at, live(entry, at(0))?)))
        .chain(scenario.cluster.iter().filter_map(|entry| Some((entry.at, live(entry, at(0))?))))
        .collect();
    told.sort_by_key(|(at, _)| *at);
    let told: Vec<String> = told.into_iter().map(|(_, line)| line).collect();
    assert_eq!(told, PROGRESS);
}
