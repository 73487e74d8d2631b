//! Built-in table of instance types: `instance-types.tsv`, one a line, sorted by name.
//!
//! - Look-ups search the embedded text; nothing is parsed ahead or kept.
//! - [`render`] and [`find`] share one format, and [`TypeInfo::from_sdk`] fills both the table and EC2's answers, so
//!   both have the same figures.
//! - `cargo run --example instance-types` builds the file from an answer of DescribeInstanceTypes.

use std::cmp::Ordering;
use std::fmt::Write as _;

use super::{Accelerator, TypeInfo};

const TABLE: &str = include_str!("instance-types.tsv");

/// Begins comment lines. Sorts before every name.
const COMMENT: char = '#';
/// An empty field.
const NONE: &str = "-";
/// Separates kinds of accelerators.
const AND: char = ';';
/// Separates the fields of one kind; model names contain spaces and dashes.
const PART: char = ':';

const ARM: &str = "arm64";
const X86: &str = "x86_64";
const PREFIXES: &str = "prefixes";

/// The type of this name, if it is in the table.
pub fn find(name: &str) -> Option<TypeInfo> {
    find_in(TABLE, name)
}

/// Names of all types in the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|line| !line.starts_with(COMMENT)).map(name_of)
}

/// Renders the table; `source` says where the figures are from.
pub fn render(mut types: Vec<TypeInfo>, source: &str) -> String {
    types.sort_by(|a, b| a.name.cmp(&b.name));
    let mut table = format!(
        "{COMMENT} EC2 instance types, for where EC2 is not asked or does not answer.\n\
         {COMMENT} Source: {source}\n\
         {COMMENT} Made by: cargo run --example instance-types -- DUMP src/aws/instance-types.tsv SOURCE\n\
         {COMMENT} DUMP is what this prints: aws ec2 describe-instance-types --output json\n\
         {COMMENT} name, vCPUs, memory in MiB, interfaces of the default network card, addresses of each, \
         architecture,\n\
         {COMMENT} whether they take prefixes, GB of NVMe instance store, accelerators (manufacturer:model:count:cores of each)\n"
    );
    for info in types {
        line(&mut table, &info);
    }
    table
}

fn line(table: &mut String, info: &TypeInfo) {
    let TypeInfo {
        name,
        vcpus,
        memory_mib,
        interfaces,
        addresses,
        arm,
        prefixes,
        instance_store_gb,
        accelerators,
    } = info;
    let arch = if *arm { ARM } else { X86 };
    let prefixes = if *prefixes { PREFIXES } else { NONE };
    let mut kinds: Vec<String> = Vec::new();
    for Accelerator { manufacturer, name, count, cores } in accelerators {
        kinds.push(format!("{manufacturer}{PART}{name}{PART}{count}{PART}{cores}"));
    }
    let kinds = if kinds.is_empty() { NONE.to_owned() } else { kinds.join(&AND.to_string()) };
    let _ = writeln!(
        table,
        "{name}\t{vcpus}\t{memory_mib}\t{interfaces}\t{addresses}\t{arch}\t{prefixes}\t{instance_store_gb}\t{kinds}"
    );
}

/// The type of this name in a table as [`render`] makes it.
pub fn find_in(table: &str, name: &str) -> Option<TypeInfo> {
    read(line_of(table, name)?)
}

/// The line of a table that begins with this name and a tab: a search among lines that are sorted by name.
pub(crate) fn line_of<'a>(mut table: &'a str, name: &str) -> Option<&'a str> {
    while !table.is_empty() {
        let middle = table.floor_char_boundary(table.len() / 2);
        let start = table[..middle].rfind('\n').map_or(0, |at| at + 1);
        let end = table[start..].find('\n').map_or(table.len(), |at| start + at + 1);
        match name.cmp(name_of(&table[start..end])) {
            Ordering::Less => table = &table[..start],
            Ordering::Equal => return Some(table[start..end].trim_end_matches('\n')),
            Ordering::Greater => table = &table[end..],
        }
    }
    None
}

fn name_of(line: &str) -> &str {
    line.split('\t').next().unwrap_or_default()
}

fn read(line: &str) -> Option<TypeInfo> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, vcpus, memory, interfaces, addresses, arch, prefixes, store, accelerators] = fields[..] else {
        return None;
    };
    // Whatever sorts before a comment could not be found again.
    if !name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let kinds = accelerators.split(AND).filter(|&kind| kind != NONE);
    let info = TypeInfo {
        name: name.to_owned(),
        vcpus: vcpus.parse().ok()?,
        memory_mib: memory.parse().ok()?,
        interfaces: interfaces.parse().ok()?,
        addresses: addresses.parse().ok()?,
        arm: arch == ARM,
        prefixes: prefixes == PREFIXES,
        instance_store_gb: store.parse().ok()?,
        accelerators: kinds.map(accelerator).collect::<Option<_>>()?,
    };
    Some(info.bounded())
}

fn accelerator(kind: &str) -> Option<Accelerator> {
    let parts: Vec<&str> = kind.split(PART).collect();
    let [manufacturer, name, count, cores] = parts[..] else { return None };
    Some(Accelerator {
        manufacturer: manufacturer.to_owned(),
        name: name.to_owned(),
        count: count.parse().ok()?,
        cores: cores.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_type_of_the_file_is_found_and_the_file_is_as_it_would_be_written() {
        let types: Vec<_> = names().map(|name| find(name).unwrap_or_else(|| panic!("{name}"))).collect();
        assert!(types.len() > 1000, "{}", types.len());
        let source = TABLE.lines().nth(1).and_then(|line| line.strip_prefix("# Source: "));
        assert_eq!(render(types, source.expect("tells its source")), TABLE);
    }

    #[test]
    fn a_name_that_is_not_there_is_not_found() {
        for name in ["", "#", "a", "m5.largest", "m5.larg", "zzz", "# Source", "\t", "é"] {
            assert_eq!(find(name), None, "{name}");
        }
        assert_eq!(find_in("", "m5.large"), None);
    }

    #[test]
    fn a_line_that_is_not_as_it_should_be_is_no_type() {
        for line in
            ["m5.large", "m5.large\tx\t1\t1\t1\tx86_64\t-\t0\t-", "m5.large\t1\t1\t1\t1\tx86_64\t-\t0\tT4"]
        {
            assert_eq!(find_in(line, "m5.large"), None, "{line}");
        }
    }

    #[test]
    fn figures_that_no_type_has_are_bounded() {
        let line = "m5.large\t9223372036854775807\t9223372036854775807\t-1\t5\tx86_64\t-\t0\tAWS:X:9223372036854775807:2";
        let info = find_in(line, "m5.large").expect("a type");
        assert_eq!((info.vcpus, info.memory_mib, info.interfaces, info.addresses), (1 << 16, 1 << 30, 0, 5));
        assert_eq!(info.accelerators.first().map(|kind| kind.count), Some(1 << 16));
    }

    prop_compose! {
        fn types()(
            figures in prop::collection::btree_map("[a-z][a-z0-9.-]{0,9}", (0..9_999i64, any::<bool>(), any::<bool>()), 1..30),
            chips in prop::collection::vec(("[A-Z][A-Za-z0-9]{0,6}", "[A-Z][A-Za-z0-9 -]{0,12}", 0..20i64, 0..9i64), 0..3),
        ) -> Vec<TypeInfo> {
            let accelerator = |(manufacturer, name, count, cores)| Accelerator { manufacturer, name, count, cores };
            let accelerators: Vec<_> = chips.into_iter().map(accelerator).collect();
            let info = |(name, (n, arm, prefixes))| TypeInfo {
                name, vcpus: n, memory_mib: 7 * n, interfaces: n % 15, addresses: n % 50, arm, prefixes, instance_store_gb: n % 999,
                accelerators: accelerators.clone(),
            };
            figures.into_iter().map(info).collect()
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_found_again(types in types()) {
            let table = render(types.iter().rev().cloned().collect(), "here");
            for info in types {
                prop_assert_eq!(find_in(&table, &info.name), Some(info.clone()));
                prop_assert_eq!(find_in(&table, &format!("{}!", info.name)), None);
            }
        }
    }
}
