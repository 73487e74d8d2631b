//! In the container of `serve`, `plan`, `check` and `prices` look by the flags that it was started with:
//! `kubectl exec … -- ebbtide check`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use super::flags::variable_of;

/// Where Linux has the command line of a container's first process, a zero byte after each argument.
///
/// Source: [proc_pid_cmdline(5)](https://man7.org/linux/man-pages/man5/proc_pid_cmdline.5.html).
pub const FIRST_PROCESS: &str = "/proc/1/cmdline";

/// The flags on this command line of `ebbtide serve`, by their environment variables; none if it is another program's.
pub(super) fn flags_of_serve(command_line: &[u8]) -> BTreeMap<String, String> {
    let mut flags: BTreeMap<String, String> = BTreeMap::new();
    let text = String::from_utf8_lossy(command_line);
    let mut args = text.split('\0').peekable();
    let is_ours = args.next().is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new("ebbtide")));
    if !is_ours || args.next() != Some("serve") {
        return flags;
    }
    while let Some(arg) = args.next() {
        let Some(flag) = arg.strip_prefix("--").filter(|flag| !flag.is_empty()) else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value),
            None => {
                (flag, args.next_if(|next| !next.is_empty() && !next.starts_with("--")).unwrap_or("true"))
            }
        };
        // A flag that is given several times has all its values, as in a variable.
        flags
            .entry(variable_of(name))
            .and_modify(|values| *values = format!("{values};{value}"))
            .or_insert_with(|| value.to_owned());
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(args: &[&str]) -> Vec<(String, String)> {
        flags_of_serve((args.join("\0") + "\0").as_bytes()).into_iter().collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn the_flags_of_serve_are_found_however_they_are_written() {
        let args =
            ["/ebbtide", "serve", "--nodes=1:2:a", "--drain-timeout", "10m", "--nodes=3:4:b", "--dry-run"];
        let found = [
            pair("EBBTIDE_DRAIN_TIMEOUT", "10m"),
            pair("EBBTIDE_DRY_RUN", "true"),
            pair("EBBTIDE_NODES", "1:2:a;3:4:b"),
        ];
        assert_eq!(flags(&args), found);
    }

    #[test]
    fn other_programs_have_none() {
        for args in
            [&["/sbin/init"][..], &["sh", "serve", "--nodes=a"], &["ebbtide", "simulate", "--seed=1"], &[]]
        {
            assert_eq!(flags(args), []);
        }
        assert!(flags_of_serve(b"\xff\0\xfe").is_empty());
    }
}
