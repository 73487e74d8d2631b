//! The status page: [`Status`] as HTML, for a browser of any width, with a script or without one.
//!
//! Invariants: what comes from outside is escaped ([`html::Html`]); the page loads nothing but its own style and script, and its
//! content security policy allows nothing else.

mod html;
mod timeline;

use self::html::{Html, lasted, moment};
use self::timeline::Axis;
use crate::dry_run::Would;
use crate::scale_in::status::{AutoscalerDrain, Cordoned, Ended, GroupStatus, Queue, ScaleIn, Status};

/// The page's style.
pub(super) const STYLE: &str = include_str!("page.css");

/// The page's script: fetches the page again and exchanges what has changed.
pub(super) const SCRIPT: &str = include_str!("page.js");

/// What a browser may load for the page: its own style and script, and the page again.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A queue of which AWS has answered no read for so long is not read; alert `EbbtideQueueUnread` says the same.
const UNREAD_SECONDS: u64 = 300;

/// The whole page.
pub(super) fn page(status: &Status) -> String {
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>ebbtide</title>");
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    html.raw("<meta name=\"color-scheme\" content=\"light dark\">");
    html.raw("<link rel=\"stylesheet\" href=\"status.css\">");
    html.raw("<noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript>");
    html.raw("<script src=\"status.js\" defer></script></head><body><main>");
    head(&mut html, status);
    dry_run(&mut html, status.dry_run.as_deref());
    under_way(&mut html, status);
    autoscaler_drains(&mut html, &status.autoscaler_drains);
    cordoned(&mut html, &status.cordoned);
    groups(&mut html, &status.groups);
    notices(&mut html, status);
    ended(&mut html, &status.ended);
    html.raw("</main><p id=\"lost\" hidden>No answer: what you see is old.</p></body></html>\n");
    html.done()
}

fn head(html: &mut Html, status: &Status) {
    html.raw("<header><h1>ebbtide <small>").text(status.version).raw("</small></h1><p>");
    html.raw("<time>").text(moment(status.at)).raw("</time> · ");
    match (&status.leader.name, status.leader.here) {
        (Some(name), true) => html.raw("this process leads (").text(name).raw(")"),
        (None, true) => html.raw("this process leads"),
        (Some(name), false) => html.text(name).raw(" leads; its status page shows more"),
        (None, false) => html.raw("<b class=\"bad\">nobody is known to lead: nothing is drained</b>"),
    };
    html.raw("</p><p>");
    match status.known.groups_age_seconds {
        Some(age) => html.raw("groups: as AWS had them ").text(lasted(age)).raw(" ago"),
        None => html.raw("<b class=\"bad\">groups: AWS has not answered yet</b>"),
    };
    if status.known.groups_age_seconds.is_some() && !status.known.groups_fresh {
        html.raw(" <b class=\"bad\">(too old: cluster-autoscaler gets no answers)</b>");
    }
    html.raw(" · ");
    if status.known.watches_alive {
        html.raw("watches alive");
    } else {
        let silence = lasted(status.known.watch_silence_seconds);
        html.raw("<b class=\"bad\">a watch has been silent for ").text(silence).raw("</b>");
    }
    for (kind, _) in status.known.listed.iter().filter(|(_, listed)| !**listed) {
        html.raw(" · <b class=\"bad\">").text(kind).raw(" not listed yet</b>");
    }
    html.raw("</p></header>");
}

/// What would have been done.
fn dry_run(html: &mut Html, would: Option<&[Would]>) {
    let Some(would) = would else { return };
    html.raw("<section id=\"dry-run\"><h2>Dry run: nothing is changed <small>").text(would.len());
    html.raw("</small></h2>");
    if would.is_empty() {
        html.raw("<p class=\"none\">Nothing would have been done so far.</p></section>");
        return;
    }
    html.raw(
        "<table><thead><tr><th>would have</th><th>first</th><th>last</th><th>times</th></tr></thead><tbody>",
    );
    for one in would {
        html.raw("<tr>").cell("would have", &one.what).cell("first", moment(one.first_at));
        html.cell("last", moment(one.last_at)).cell("times", one.times).raw("</tr>");
    }
    html.raw("</tbody></table></section>");
}

fn under_way(html: &mut Html, status: &Status) {
    html.raw("<section id=\"under-way\"><h2>Scale-ins under way <small>");
    html.text(status.scale_ins.len()).raw("</small></h2>");
    if status.scale_ins.is_empty() && status.autoscaler_drains.is_empty() {
        html.raw("<p class=\"none\">None.</p>");
    }
    let axis = Axis::of(&status.scale_ins, status.at);
    for one in &status.scale_ins {
        scale_in(html, one, axis);
    }
    html.raw("</section>");
}

fn scale_in(html: &mut Html, one: &ScaleIn, axis: Axis) {
    html.raw("<article><h3><span class=\"chip ").text(one.phase).raw("\">").text(one.phase).raw("</span> ");
    html.text(&one.node).raw("</h3><p class=\"facts\">").text(one.cause);
    for (label, value) in [("group", one.group.as_deref()), ("instance", one.instance.as_deref())] {
        if let Some(value) = value {
            html.raw(" · ").raw(label).raw(" ").text(value);
        }
    }
    if let Some(release) = one.release {
        html.raw(" · release: ").text(release.as_str());
    }
    for (label, at) in [
        ("since", one.requested_at),
        ("pods that stay are deleted from", one.last_call),
        ("this phase ends by", one.phase_until),
        ("released by", one.release_by),
        ("AWS ends the machine at", one.ends_at),
    ] {
        if let Some(at) = at {
            html.raw(" · ").raw(label).raw(" <time>").text(moment(at)).raw("</time>");
        }
    }
    // One that waits for its turn has the limit of whatever hook will hold it.
    if one.release_by.is_none() && one.phase != "Queued" {
        html.raw(" · no time limit");
    }
    html.raw("</p>");
    timeline::draw(html, one, axis);
    if let Some(groups) = &one.load_balancers {
        let names = if groups.is_empty() { "AWS has not said which".to_owned() } else { groups.join(", ") };
        html.raw("<p>waits for load balancers to let go of the instance: ").text(names).raw("</p>");
    }
    if one.held_by_another == Some(true) {
        html.raw("<p>waits for the owner of another lifecycle hook, which holds the instance</p>");
    }
    if let Some(refused) = &one.refused {
        html.raw("<p class=\"bad\">AWS does not release the instance: ").text(refused).raw("</p>");
    }
    waiting(html, one);
    html.raw("</article>");
}

fn waiting(html: &mut Html, one: &ScaleIn) {
    let Some(waiting) = one.waiting.as_ref().filter(|waiting| !waiting.is_empty()) else { return };
    html.raw("<table><thead><tr><th>waits for</th><th>why</th><th>until</th></tr></thead><tbody>");
    for wait in waiting {
        html.raw("<tr class=\"").text(wait.reason).raw("\">");
        html.cell("waits for", &wait.pod).cell("why", &wait.text);
        html.cell("until", wait.until.map(moment).unwrap_or_default()).raw("</tr>");
    }
    html.raw("</tbody></table>");
}

/// Nodes whose end cluster-autoscaler has not asked for yet. Which of their pods are to go, this process does not know.
fn autoscaler_drains(html: &mut Html, drains: &[AutoscalerDrain]) {
    if drains.is_empty() {
        return;
    }
    html.raw("<section id=\"autoscaler-drains\"><h2>Drained by cluster-autoscaler <small>")
        .text(drains.len());
    html.raw("</small></h2><p>It asks for their end once their pods have gone; <code>ebbtide status</code> ");
    html.raw("has the pods that are to go.</p><table><thead><tr><th>node</th><th>instance</th>");
    html.raw("<th>since</th></tr></thead><tbody>");
    for one in drains {
        html.raw("<tr>").cell("node", &one.node);
        html.cell("instance", one.instance.as_deref().unwrap_or_default());
        html.cell("since", one.since.map(moment).unwrap_or_default()).raw("</tr>");
    }
    html.raw("</tbody></table></section>");
}

/// Nodes that take no new pods because of notices.
fn cordoned(html: &mut Html, cordoned: &[Cordoned]) {
    if cordoned.is_empty() {
        return;
    }
    html.raw("<section id=\"cordoned\"><h2>Closed for a notice <small>").text(cordoned.len());
    html.raw("</small></h2><table><thead><tr><th>node</th><th>instance</th><th>cause</th>");
    html.raw("<th>opens again at</th></tr></thead><tbody>");
    for one in cordoned {
        let causes: Vec<&str> = one.causes.iter().map(|cause| cause.as_str()).collect();
        html.raw("<tr>").cell("node", &one.node);
        html.cell("instance", one.instance.as_deref().unwrap_or_default());
        html.cell("cause", causes.join(", ")).cell("opens again at", moment(one.until)).raw("</tr>");
    }
    html.raw("</tbody></table></section>");
}

fn groups(html: &mut Html, groups: &[GroupStatus]) {
    html.raw("<section id=\"groups\"><h2>Groups <small>").text(groups.len()).raw("</small></h2>");
    html.raw("<table><thead><tr><th>group</th><th>min</th><th>desired</th><th>max</th><th>target</th>");
    html.raw("<th>leaving</th><th>missing</th><th>hook</th><th>a new node</th></tr></thead><tbody>");
    for group in groups {
        html.raw("<tr>").cell("group", &group.name).cell("min", group.aws.min);
        html.cell("desired", group.aws.desired).cell("max", group.aws.max);
        html.cell("target", group.told.desired).cell("leaving", group.leaving).cell("missing", group.missing);
        html.cell("hook", hook(group)).cell("a new node", new_node(group)).raw("</tr>");
        for trouble in troubles(group) {
            html.raw("<tr class=\"trouble\"><td colspan=\"9\" class=\"bad\">")
                .text(trouble)
                .raw("</td></tr>");
        }
    }
    html.raw("</tbody></table></section>");
}

fn hook(group: &GroupStatus) -> String {
    let others = if group.hook.others { ", and another's" } else { "" };
    match (&group.hook.name, group.hook.heartbeat_seconds) {
        (Some(name), Some(seconds)) => format!("{name}, {}{others}", lasted(seconds)),
        _ => format!("{}{others}", group.hook.state),
    }
}

fn new_node(group: &GroupStatus) -> String {
    let Some(template) = &group.template else { return "is being looked up".to_owned() };
    let of = |name: &str| template.allocatable.get(name).map_or("?", String::as_str);
    let kind = template.instance_type.as_deref().unwrap_or("unknown");
    format!("{kind}: cpu {}, memory {}, pods {}", of("cpu"), of("memory"), of("pods"))
}

/// What somebody should look at in a group.
fn troubles(group: &GroupStatus) -> Vec<String> {
    let launches = group.launches.as_ref().map(|failure| {
        format!("{} launches failed: {}: {}", failure.launches, failure.code, failure.message)
    });
    let template = group.template.as_ref().and_then(|template| template.error.as_ref());
    let template = template.map(|error| format!("there is no template: {error}"));
    let frozen = group.frozen.as_ref().map(|why| format!("AWS refuses changes: {why}"));
    let suspended =
        (!group.suspended.is_empty()).then(|| format!("suspended: {}", group.suspended.join(", ")));
    let weighted = group.weighted.then(|| "its instances have weights: it is not grown".to_owned());
    [launches, template, frozen, suspended, weighted].into_iter().flatten().collect()
}

/// What AWS tells of instances' ends, and the queues that it tells it by.
fn notices(html: &mut Html, status: &Status) {
    if status.queues.is_empty() && status.notices.is_empty() {
        return;
    }
    html.raw("<section id=\"notices\"><h2>Notices from AWS</h2><ul>");
    for queue in &status.queues {
        html.raw("<li>queue ").text(&queue.url).raw(": ");
        let is_unread = queue.silent_seconds().is_some_and(|silent| silent >= UNREAD_SECONDS);
        html.raw(if is_unread { "<b class=\"bad\">" } else { "<span>" });
        html.text(reading(queue, status.leader.here));
        html.raw(if is_unread { "</b></li>" } else { "</span></li>" });
    }
    for notice in &status.notices {
        html.raw("<li>").text(&notice.instance).raw(": ").text(notice.cause);
        if let Some(at) = notice.ends_at {
            html.raw(", ends at <time>").text(moment(at)).raw("</time>");
        }
        html.raw("</li>");
    }
    html.raw("</ul></section>");
}

/// How the reading of a queue goes.
fn reading(queue: &Queue, leads: bool) -> String {
    let error = queue.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    match (queue.read_age_seconds, queue.reading_for_seconds) {
        (Some(age), _) => format!("read {} ago{error}", lasted(age)),
        (None, Some(tried)) => format!("not read in the {} since this began{error}", lasted(tried)),
        (None, None) if leads => "not read yet".to_owned(),
        (None, None) => "read by the leader".to_owned(),
    }
}

fn ended(html: &mut Html, ended: &[Ended]) {
    html.raw("<section id=\"ended\"><h2>Ended <small>").text(ended.len()).raw("</small></h2>");
    if ended.is_empty() {
        html.raw("<p class=\"none\">None since this process was started.</p></section>");
        return;
    }
    html.raw("<table><thead><tr><th>node</th><th>group</th><th>cause</th><th>outcome</th><th>at</th>");
    html.raw("<th>took</th><th>phases</th></tr></thead><tbody>");
    for one in ended {
        let outcome = one.outcome.as_str();
        let why = one.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let stages: Vec<String> =
            one.stages.iter().map(|stage| format!("{} {}", stage.phase, lasted(stage.seconds))).collect();
        html.raw("<tr>").cell("node", &one.node).cell("group", &one.group).cell("cause", one.cause);
        html.cell("outcome", format_args!("{outcome}{why}")).cell("at", moment(one.ended_at));
        html.cell("took", lasted(one.seconds)).cell("phases", stages.join(", ")).raw("</tr>");
    }
    html.raw("</tbody></table></section>");
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::groups::LaunchFailure;
    use crate::scale_in::record::Cause;
    use crate::scale_in::status::{Ending, Notice, TemplateStatus, Wait};

    const EVIL: &str = "<img src=x onerror=alert(1)>\"'&";

    /// A status in which every text from outside is hostile.
    fn hostile() -> Status {
        let at = Timestamp::from_second(1_700_000_000).expect("in range");
        let text = || EVIL.to_owned();
        let wait =
            Wait { pod: text(), reason: "budget", text: text(), budget: Some(text()), until: Some(at) };
        let scale_in = ScaleIn {
            node: EVIL.into(),
            instance: Some(EVIL.into()),
            group: Some(EVIL.into()),
            cause: Cause::Operator,
            phase: "Draining",
            requested_at: Some(at),
            stages: Vec::new(),
            phase_until: Some(at),
            last_call: Some(at),
            release_by: Some(at),
            ends_at: Some(at),
            release: None,
            waiting: Some(vec![wait]),
            load_balancers: Some(vec![text()]),
            held_by_another: Some(true),
            refused: Some(text()),
        };
        let ended = Ended {
            node: EVIL.into(),
            instance: EVIL.into(),
            group: EVIL.into(),
            cause: Cause::Operator,
            outcome: Ending::Cancelled,
            why: Some(text()),
            requested_at: at,
            ended_at: at,
            seconds: 3_700,
            stages: Vec::new(),
        };
        let launches = LaunchFailure { code: text(), message: text(), out_of_resources: true, launches: 1 };
        let template =
            TemplateStatus { error: Some(text()), instance_type: Some(text()), ..TemplateStatus::default() };
        let group = GroupStatus {
            name: EVIL.into(),
            frozen: Some(text()),
            suspended: vec![text()],
            launches: Some(launches),
            template: Some(template),
            ..GroupStatus::default()
        };
        let mut status = Status {
            at,
            scale_ins: vec![scale_in],
            ended: vec![ended],
            groups: vec![group],
            ..Status::default()
        };
        status.dry_run = Some(vec![Would { what: text(), first_at: at, last_at: at, times: 1 }]);
        status.leader.name = Some(text());
        status.queues = vec![Queue {
            url: text(),
            error: Some(text()),
            reading_for_seconds: Some(40),
            read_age_seconds: None,
        }];
        let causes = vec![Cause::ScheduledEvent];
        status.cordoned =
            vec![Cordoned { node: EVIL.into(), instance: Some(EVIL.into()), causes, until: at }];
        status.notices = vec![Notice { instance: EVIL.into(), cause: Cause::Operator, ends_at: None }];
        status
    }

    #[test]
    fn no_text_from_outside_becomes_markup() {
        let page = page(&hostile());
        assert!(page.matches("&lt;img src=x onerror=alert(1)&gt;&quot;&#39;&amp;").count() >= 15, "{page}");
        assert!(!page.contains("<img") && !page.contains("onerror=alert(1)>"), "{page}");
    }

    #[test]
    fn of_a_request_that_waits_for_its_turn_no_limit_is_claimed_and_none_denied() {
        let mut status = hostile();
        let claims = |status: &Status| page(status).contains("no time limit");
        status.scale_ins[0].release_by = None;
        assert!(claims(&status));
        status.scale_ins[0].phase = "Queued";
        assert!(!claims(&status));
    }

    #[test]
    fn a_queue_is_read_only_once_aws_has_answered_and_bad_after_five_minutes_without() {
        let of = |reading_for_seconds, read_age_seconds, error: Option<&str>| {
            let error = error.map(str::to_owned);
            let queues = vec![Queue { url: "q".into(), reading_for_seconds, read_age_seconds, error }];
            let page = page(&Status { queues, ..Status::default() });
            page.split("queue q: ")
                .nth(1)
                .and_then(|rest| rest.split("</li>").next())
                .expect("told")
                .to_owned()
        };
        for (reading, read, error, expected) in [
            (None, None, None, "<span>read by the leader</span>"),
            (Some(40), None, None, "<span>not read in the 40 s since this began</span>"),
            (Some(40), None, Some("denied"), "<span>not read in the 40 s since this began: denied</span>"),
            (
                Some(300),
                None,
                Some("no"),
                "<b class=\"bad\">not read in the 5 min 0 s since this began: no</b>",
            ),
            (Some(900), Some(20), None, "<span>read 20 s ago</span>"),
            (Some(900), Some(299), Some("late"), "<span>read 4 min 59 s ago: late</span>"),
            (Some(900), Some(300), Some("late"), "<b class=\"bad\">read 5 min 0 s ago: late</b>"),
        ] {
            assert_eq!(of(reading, read, error), expected);
        }
    }

    #[test]
    fn the_page_loads_nothing_but_its_own() {
        let page = page(&Status::default());
        for from in ["src=\"", "href=\""] {
            for loaded in page.split(from).skip(1) {
                assert!(loaded.starts_with("status."), "{loaded}");
            }
        }
        assert!(!page.contains("style=") && !page.contains("<script>"), "the policy allows neither");
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
    }

    #[test]
    fn a_time_is_told_in_its_two_largest_units() {
        let told = [0, 59, 61, 3_599, 3_600, 176_461].map(lasted);
        assert_eq!(told, ["0 s", "59 s", "1 min 1 s", "59 min 59 s", "1 h 0 min", "49 h 1 min"]);
    }
}
