//! What an instance's user data tells of its Node: how many pods it takes, and where their storage is.
//!
//! - Only what the images of EKS themselves read is looked for; a script that does the same another way is not
//!   understood. Comments do not count.
//! - EKS puts its own part behind the user's in managed node groups without an own image, and the last word counts for
//!   the images as it does here: [Amazon EC2 user
//!   data](https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html#launch-template-user-data).
//! - Nothing of the text is kept: it may hold secrets.

use super::MOST_PODS;

/// What user data tells of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserData {
    /// The number of pods that the kubelet is told.
    ///
    /// Sources: `maxPods` of [nodeadm's
    /// NodeConfig](https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/), `--max-pods` among the kubelet's
    /// arguments of [bootstrap.sh](https://github.com/awslabs/amazon-eks-ami/blob/0ab842803d827b8087d78dd2eff0bc408caec771/templates/al2/runtime/bootstrap.sh),
    /// `max-pods` of [Bottlerocket's
    /// settings](https://bottlerocket.dev/en/os/latest/#/api/settings/kubernetes/).
    pub max_pods: Option<i64>,
    /// Whether pods' storage is on all NVMe instance store volumes together, where the type has some.
    ///
    /// Sources: `localStorage` of [nodeadm's
    /// NodeConfig](https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/),
    /// [setup-local-disks](https://github.com/awslabs/amazon-eks-ami/blob/main/templates/al2023/runtime/bin/setup-local-disks),
    /// which bootstrap.sh calls for `--local-disks raid0`, and Bottlerocket's [ephemeral
    /// storage](https://github.com/bottlerocket-os/bottlerocket-core-kit/tree/develop/sources/api/apiclient).
    pub local_raid0: bool,
    /// Whether it is of Bottlerocket: nothing else is set up by such
    /// [settings](https://github.com/bottlerocket-os/bottlerocket#using-user-data).
    pub bottlerocket: bool,
}

impl UserData {
    /// Reads it as EC2 tells it, in Base64. What is packed tells nothing.
    pub(super) fn read(encoded: Option<&str>) -> Self {
        let decoded = encoded.and_then(|text| aws_smithy_types::base64::decode(text.trim()).ok());
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        // A command of a script may go on in the next line.
        let whole = lines.map(|line| match line.strip_suffix('\\') {
            Some(begun) => format!("{begun} "),
            None => format!("{line}\n"),
        });
        let text: String = whole.collect();
        Self {
            max_pods: text.lines().filter_map(max_pods).next_back(),
            local_raid0: text.lines().filter_map(local_raid0).next_back().unwrap_or(false)
                || binds_ephemeral_storage(&text),
            bottlerocket: is_of_bottlerocket(&text),
        }
    }
}

/// The last number of pods that this line tells.
fn max_pods(line: &str) -> Option<i64> {
    let told = |(at, key): (usize, &str)| {
        let number = line[at + key.len()..].trim_start_matches(['"', '\'', ' ', '=', ':']);
        let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok().filter(|pods| (1..=MOST_PODS).contains(pods))
    };
    ["max-pods", "maxPods"].iter().find_map(|key| line.rmatch_indices(key).find_map(told))
}

/// The last that this line tells an image of Amazon Linux about the instance store: whether pods' storage is on all of it.
fn local_raid0(line: &str) -> Option<bool> {
    let between = |c: char| c.is_whitespace() || "\"'=:,{}[]".contains(c);
    let of_command = |command: &str| {
        let words: Vec<_> = command.split(between).filter(|word| !word.is_empty()).collect();
        let told = |at: usize| {
            let rest = &words[at + 1..];
            match words[at] {
                "strategy" | "--local-disks" => is_raid0(rest.first()?),
                // What it does not bind stays where it is, so that such a call says nothing of pods' storage.
                script if script.ends_with("setup-local-disks") => {
                    let is_kept_off =
                        rest.iter().any(|w| matches!(*w, "--no-bind-kubelet" | "--no-bind-mounts"));
                    (rest.contains(&"raid0") && !is_kept_off).then_some(true)
                }
                _ => None,
            }
        };
        (0..words.len()).rev().find_map(told)
    };
    line.split([';', '&', '|']).rev().find_map(of_command)
}

/// What nodeadm and bootstrap.sh can be told to do with the instance store.
fn is_raid0(strategy: &str) -> Option<bool> {
    match strategy {
        "RAID0" | "raid0" => Some(true),
        "RAID10" | "raid10" | "Mount" | "mount" | "none" => Some(false),
        _ => None,
    }
}

/// Whether a command of Bottlerocket's puts kubelet and containers on the instance store.
fn binds_ephemeral_storage(text: &str) -> bool {
    let text: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '"' | '\'')).collect();
    text.contains("apiclient,ephemeral-storage,bind]")
        || text.contains("apiclient,ephemeral-storage,bind,") && text.contains("/var/lib/kubelet")
}

/// Whether a table or a key, which may be [dotted](https://toml.io/en/v1.0.0#keys), is among `settings.kubernetes`.
fn is_of_bottlerocket(text: &str) -> bool {
    let mut table = String::new();
    text.lines().any(|line| {
        let header = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let path = match (header, line.split_once('=')) {
            // Lines of arrays begin like this, too.
            (Some((header, _)), _) if !header.contains(',') => {
                table = bare(header);
                table.clone()
            }
            (_, Some((key, _))) if table.is_empty() => bare(key),
            (_, Some((key, _))) => format!("{table}.{}", bare(key)),
            _ => return false,
        };
        path.strip_prefix("settings.kubernetes").is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// A key of TOML without what may stand around its parts.
fn bare(key: &str) -> String {
    let parts = key.split('.').map(|part| part.trim().trim_matches(['"', '\'']));
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> UserData {
        UserData::read(Some(&aws_smithy_types::base64::encode(text)))
    }

    #[test]
    fn the_number_of_pods_is_the_last_one_that_the_kubelet_is_told() {
        for (text, expected) in [
            ("spec:\n  kubelet:\n    config:\n      maxPods: 58\n", Some(58)),
            ("maxPods: 20\n--//\nmaxPods: 110\n", Some(110)),
            (r#"{"kubelet": {"config": {"maxPods": 35}}}"#, Some(35)),
            ("/etc/eks/bootstrap.sh x --kubelet-extra-args '--max-pods=20' --use-max-pods false", Some(20)),
            ("bootstrap.sh x --use-max-pods false --kubelet-extra-args \"--max-pods 29 -v 2\"", Some(29)),
            ("[settings.kubernetes]\nmax-pods = 234\n", Some(234)),
            ("\"max-pods\" = \"100\"", Some(100)),
            ("# maxPods: 7", None),
            ("maxPodsExpression: \"default_enis * 9\"", None),
            ("--use-max-pods false", None),
            ("--max-pods=$PODS", None),
            ("maxPods: 0", None),
            ("maxPods: 2001", None),
            ("maxPods: 99999999999999999999999", None),
            ("maxPods:", None),
            ("maxPods", None),
        ] {
            assert_eq!(read(text).max_pods, expected, "{text}");
        }
    }

    #[test]
    fn the_instance_store_is_pods_storage_where_the_kubelets_directory_is_on_it() {
        let bind = |directories: &str| {
            format!(
                "commands = [\n  [\"apiclient\", \"ephemeral-storage\", \"init\"],\n  [\"apiclient\", \"ephemeral-storage\" ,\"bind\"{directories}]]"
            )
        };
        for (text, expected) in [
            ("localStorage:\n  strategy: RAID0\n", true),
            ("{\"localStorage\": {\"strategy\": \"RAID0\"}}", true),
            ("/etc/eks/bootstrap.sh x --local-disks raid0", true),
            ("/bin/setup-local-disks raid0", true),
            (&bind(""), true),
            (&bind(", \"--dirs\", \"/var/lib/containerd\", \"/var/lib/kubelet\""), true),
            (&bind(", \"--dirs\", \"/var/lib/soci-snapshotter\""), false),
            ("localStorage:\n  strategy: Mount\n", false),
            ("localStorage:\n  strategy: RAID10\n", false),
            ("/bin/setup-local-disks --no-bind-mounts raid0", false),
            ("/bin/setup-local-disks raid0 --no-bind-kubelet", false),
            ("# strategy: RAID0", false),
            ("[settings.kubernetes.system-reserved]\nephemeral-storage = \"1Gi\"", false),
            ("", false),
        ] {
            assert_eq!(read(text).local_raid0, expected, "{text}");
        }
    }

    #[test]
    fn the_last_word_on_the_instance_store_counts() {
        for (text, expected) in [
            ("strategy: RAID0\n--//\nlocalStorage:\n  strategy: Mount\n", false),
            ("strategy: Mount\n--//\nlocalStorage:\n  strategy: RAID0\n", true),
            (r#"{"strategy": "Mount"}, {"localStorage": {"strategy": "RAID0"}}"#, true),
            (r#"{"strategy": "RAID0"}, {"localStorage": {"strategy": "RAID10"}}"#, false),
            ("bootstrap.sh x --local-disks raid0 --local-disks mount", false),
            ("bootstrap.sh x --local-disks=none \\\n  --local-disks=raid0", true),
            ("bootstrap.sh x --local-disks \\\n  raid0 --max-pods 20", true),
            // Only what the flag stands next to is kept off, and nothing is taken off that is there.
            ("strategy: RAID0\n--//\nsetup-local-disks --no-bind-kubelet mount", true),
            ("setup-local-disks raid0 --no-bind-kubelet\n--//\nstrategy: RAID0", true),
            ("setup-local-disks raid0; echo --no-bind-kubelet", true),
            ("setup-local-disks --dir /mnt/mine raid0", true),
            ("updateStrategy: RAID0", false),
            ("strategy:", false),
            ("setup-local-disks", false),
        ] {
            assert_eq!(read(text).local_raid0, expected, "{text}");
        }
    }

    #[test]
    fn bottlerocket_is_known_by_its_settings_and_what_cannot_be_read_tells_nothing() {
        assert!(read("[settings.kubernetes]\ncluster-name = \"x\"").bottlerocket);
        assert!(read("[settings.kubernetes.node-labels]\na = \"b\"").bottlerocket);
        for text in [
            "settings.kubernetes.cluster-name = \"x\"",
            "[settings]\nkubernetes.max-pods = 20",
            "[settings]\nkubernetes = { max-pods = 20 }",
            "settings.kubernetes = { max-pods = 20 }",
            "[ settings . \"kubernetes\" ]\nmax-pods = 20",
            "settings.'kubernetes'.node-labels.a = \"b\"",
            "[settings.kubernetes]",
            "[settings.host-containers.admin]\nenabled = true\n[settings.kubernetes] # ours\n",
        ] {
            assert!(read(text).bottlerocket, "{text}");
        }
        for text in [
            "#!/bin/bash\necho hello",
            "# settings.kubernetes.max-pods = 20",
            "[settings.motd]\nkubernetes = 1",
            "echo settings.kubernetes.max-pods = 20",
            "settings.kubernetesque.max-pods = 20",
            "[settings]",
        ] {
            assert!(!read(text).bottlerocket, "{text}");
        }
        for encoded in [None, Some(""), Some("%%%"), Some("H4sIAAAAAAAA/w=="), Some("////")] {
            assert_eq!(UserData::read(encoded), UserData::default(), "{encoded:?}");
        }
    }
}
