//! What the house forbids: imports that go up, and circles of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::source::{Kind, Sources};

/// The floor of each room.
pub(crate) type Floors = BTreeMap<String, u32>;

/// Neighbours on one floor that the first of them may import.
const NEIGHBOURS: [(&str, &str); 4] =
    [("main", "sim"), ("app", "config"), ("commands", "config"), ("dry_run", "clock")];

/// The table in a file's documentation: `//! | 5 | `scale_in` | what it knows |`.
pub(crate) fn floors(documentation: &str) -> Floors {
    let rows = documentation.lines().filter_map(|line| line.strip_prefix("//! |"));
    let rooms = rows.flat_map(|row| {
        let mut columns = row.split('|').map(str::trim);
        let floor = columns.next().and_then(|floor| floor.parse().ok());
        let names = columns.next().unwrap_or_default().split('`').skip(1).step_by(2);
        names.filter_map(move |name| Some((name.trim_end_matches('/').to_owned(), floor?)))
    });
    rooms.collect()
}

/// Rooms that are on no floor, and rooms on a floor that are not there.
pub(crate) fn misdrawn(sources: &Sources, floors: &Floors) -> Vec<String> {
    let mut rooms = sources.modules[&[][..]].children.clone();
    rooms.insert("main".to_owned());
    let drawn: BTreeSet<String> = floors.keys().cloned().collect();
    let homeless = rooms.difference(&drawn).map(|room| format!("src/lib.rs: {room} is on no floor"));
    let missing =
        drawn.difference(&rooms).map(|room| format!("src/lib.rs: {room} has a floor and is not there"));
    homeless.chain(missing).collect()
}

/// Imports that do not go down, with file and line.
pub(crate) fn breaches(sources: &Sources, floors: &Floors) -> Vec<String> {
    let mut breaches = Vec::new();
    for reference in &sources.references {
        let (Some(from), Some(path)) =
            (reference.module.first(), sources.absolute(&reference.module, &reference.path))
        else {
            continue;
        };
        let Some(upper) = floors.get(from) else { continue };
        let what = match path.first() {
            Some(to) if to == from => continue,
            Some(to) => match floors.get(to) {
                Some(lower) if lower < upper || NEIGHBOURS.contains(&(from, to)) => continue,
                Some(lower) => format!("imports {to} (floor {lower})"),
                // A name of the root's own would hide whose it is.
                None => format!("names crate::{to}, which is no room"),
            },
            // `pub(crate)` names the root as well.
            None if reference.kind == Kind::Named => continue,
            None => "imports all of the root".to_owned(),
        };
        let file = sources.file_of(&reference.module);
        let breach = format!("{file}:{}: {from} (floor {upper}) {what}", reference.line);
        if breaches.last() != Some(&breach) {
            breaches.push(breach);
        }
    }
    breaches
}

/// Which file needs which, for what, first in which line.
type Arrows = BTreeMap<(usize, usize), BTreeMap<String, usize>>;

/// What ties the files of each room together, outside tests. That a file has another as a module, or passes its names on,
/// is none.
fn arrows(sources: &Sources) -> Arrows {
    let mut arrows = Arrows::new();
    for reference in sources.references.iter().filter(|r| !r.is_test && r.kind != Kind::PassedOn) {
        let path = sources.absolute(&reference.module, &reference.path);
        let Some((definition, name)) = path.and_then(|path| sources.definition(&path)) else { continue };
        if definition.first() != reference.module.first() {
            continue;
        }
        let (from, to) = (sources.modules[&reference.module].file, sources.modules[definition].file);
        if from != to {
            arrows.entry((from, to)).or_default().entry(name).or_insert(reference.line);
        }
    }
    arrows
}

/// Files that need each other, and what ties them. A circle through several rooms has an import that goes up, so only those
/// within a room are looked for.
pub(crate) fn circles(sources: &Sources) -> Vec<String> {
    let arrows = arrows(sources);
    let mut needs: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        needs.entry(*from).or_default().insert(*to);
    }
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        needs.keys().map(|file| (*file, reachable(&needs, *file))).collect();
    let mut circles = BTreeSet::new();
    for (file, others) in &reached {
        let comes_back = |other: &usize| reached.get(other).is_some_and(|others| others.contains(file));
        circles.insert(others.iter().copied().filter(comes_back).collect::<BTreeSet<usize>>());
    }
    let told = circles.iter().filter(|circle| !circle.is_empty()).map(|circle| {
        let name = |file: &usize| sources.files[*file].as_str();
        let mut text = format!("{} files need each other:", circle.len());
        for ((from, to), names) in &arrows {
            if circle.contains(from) && circle.contains(to) {
                let line = names.values().min().unwrap_or(&0);
                let names = names.keys().cloned().collect::<Vec<_>>().join(", ");
                let _ = write!(text, "\n    {}:{line} needs {} for {names}", name(from), name(to));
            }
        }
        text
    });
    told.collect()
}

fn reachable(needs: &BTreeMap<usize, BTreeSet<usize>>, from: usize) -> BTreeSet<usize> {
    let (mut reached, mut ahead) = (BTreeSet::new(), vec![from]);
    while let Some(file) = ahead.pop() {
        ahead.extend(needs.get(&file).into_iter().flatten().filter(|next| reached.insert(**next)));
    }
    reached
}
