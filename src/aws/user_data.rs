//! What user data says of the Node: its number of pods, and where their storage is.
//!
//! - Only what the EKS images read is understood, not scripts that do the same another way. Comments are ignored.
//! - The last setting wins, here as in the images. In managed node groups without a custom image EKS adds its part
//!   after the user's: [Amazon EC2 user
//!   data](https://docs.aws.amazon.com/eks/latest/userguide/launch-templates.html#launch-template-user-data).
//! - The text is not kept: it may hold secrets.

use super::MOST_PODS;

/// What user data says of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserData {
    /// The kubelet's number of pods.
    ///
    /// Sources: `maxPods` of [nodeadm's
    /// NodeConfig](https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/), `--max-pods` among the kubelet's
    /// arguments of [bootstrap.sh](https://github.com/awslabs/amazon-eks-ami/blob/0ab842803d827b8087d78dd2eff0bc408caec771/templates/al2/runtime/bootstrap.sh),
    /// `max-pods` of [Bottlerocket's
    /// settings](https://bottlerocket.dev/en/os/latest/#/api/settings/kubernetes/).
    pub max_pods: Option<i64>,
    /// Whether pods' storage is on all NVMe instance store volumes together, if the type has any.
    ///
    /// Sources: `localStorage` of [nodeadm's
    /// NodeConfig](https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/),
    /// [setup-local-disks](https://github.com/awslabs/amazon-eks-ami/blob/main/templates/al2023/runtime/bin/setup-local-disks),
    /// which bootstrap.sh calls for `--local-disks raid0`, and Bottlerocket's [ephemeral
    /// storage](https://github.com/bottlerocket-os/bottlerocket-core-kit/tree/develop/sources/api/apiclient).
    pub local_raid0: bool,
    /// Whether it configures Bottlerocket, judging by its
    /// [settings](https://github.com/bottlerocket-os/bottlerocket#using-user-data).
    pub bottlerocket: bool,
}

impl UserData {
    /// Parses EC2's Base64 text. Compressed data says nothing.
    pub fn read(encoded: Option<&str>) -> Self {
        let decoded = encoded.and_then(|text| aws_smithy_types::base64::decode(text.trim()).ok());
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        // Joins continued lines of scripts.
        let whole = lines.map(|line| match line.strip_suffix('\\') {
            Some(begun) => format!("{begun} "),
            None => format!("{line}\n"),
        });
        let text: String = whole.collect();
        Self {
            max_pods: max_pods(&text),
            local_raid0: text.lines().filter_map(local_raid0).next_back().unwrap_or(false)
                || binds_ephemeral_storage(&text),
            bottlerocket: is_of_bottlerocket(&text),
        }
    }
}

/// The number of pods that the kubelet is told: its last flag, which beats what its configuration says, or the last of that. EKS appends its
/// own configuration to a managed node group's.
///
/// Source: nodeadm appends the flags of all parts, and writes the configuration into a file
/// ([environment.go](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/environment.go)); the kubelet's
/// [flags override its file](https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/).
fn max_pods(text: &str) -> Option<i64> {
    let last = |key: &str| text.lines().filter_map(|line| pods_after(line, key)).next_back();
    // The second is nodeadm's, the third Bottlerocket's.
    last("--max-pods").or_else(|| last("maxPods")).or_else(|| last("max-pods"))
}

/// The last number of pods in this line that is told by this key.
fn pods_after(line: &str, key: &str) -> Option<i64> {
    let told = |(at, _)| {
        let number = line[at + key.len()..].trim_start_matches(['"', '\'', ' ', '=', ':']);
        let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok().filter(|pods| (1..=MOST_PODS).contains(pods))
    };
    line.rmatch_indices(key).find_map(told)
}

/// The last instance store setting for Amazon Linux in this line: whether pods' storage is on all of it.
fn local_raid0(line: &str) -> Option<bool> {
    let between = |c: char| c.is_whitespace() || "\"'=:,{}[]".contains(c);
    let of_command = |command: &str| {
        let words: Vec<_> = command.split(between).filter(|word| !word.is_empty()).collect();
        let told = |at: usize| {
            let rest = &words[at + 1..];
            match words[at] {
                "strategy" | "--local-disks" => is_raid0(rest.first()?),
                // Without binding, pods' storage stays where it is, so the call says nothing of it.
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

/// Whether a strategy of nodeadm or bootstrap.sh puts storage on all volumes.
fn is_raid0(strategy: &str) -> Option<bool> {
    match strategy {
        "RAID0" | "raid0" => Some(true),
        "RAID10" | "raid10" | "Mount" | "mount" | "none" => Some(false),
        _ => None,
    }
}

/// Whether a Bottlerocket command binds kubelet and containers to the instance store.
fn binds_ephemeral_storage(text: &str) -> bool {
    let text: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '"' | '\'')).collect();
    text.contains("apiclient,ephemeral-storage,bind]")
        || text.contains("apiclient,ephemeral-storage,bind,") && text.contains("/var/lib/kubelet")
}

/// Whether a table or key, possibly [dotted](https://toml.io/en/v1.0.0#keys), is within `settings.kubernetes`.
fn is_of_bottlerocket(text: &str) -> bool {
    let mut table = String::new();
    text.lines().any(|line| {
        let header = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let path = match (header, line.split_once('=')) {
            // Array lines begin with a bracket too.
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

/// A TOML key without quotes and spaces around its parts.
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
            ("config: {maxPods: 110}\nflags: [\"--max-pods=110\"]\n--//\nmaxPods: 11\n", Some(110)),
            ("--max-pods=20\n--max-pods=30\n", Some(30)),
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
            // A flag affects only its own command, and a later command does not undo an earlier one.
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
