//! Memory, start and CPU by the number of Nodes, as pictures.

use std::fmt::Write as _;
use std::path::Path;

use crate::stage::{Size, Stage};
use crate::{SETTLED, idle, measured, row, start};

/// From 1,000 to 100,000 Nodes.
const SIZES: [Size; 5] = [
    Size { groups: 40, nodes: 25 },
    Size { groups: 200, nodes: 25 },
    Size { groups: 600, nodes: 25 },
    Size { groups: 2_000, nodes: 25 },
    Size { groups: 4_000, nodes: 25 },
];

/// What is drawn of each size.
struct Point {
    nodes: f64,
    figures: [f64; 3],
}

const PICTURES: [(&str, &str, &str); 3] = [
    ("memory", "resident memory", "MB"),
    ("start", "start to all groups answered", "s"),
    ("idle", "CPU while idle", "% of a core"),
];

/// Measures, prints, and draws into `folder` what could be measured. Returns whether that was all.
pub(crate) async fn draw(program: &Path, folder: Option<&Path>, divide: usize) -> bool {
    let mut points = Vec::new();
    for size in SIZES.map(|size| size.divided(divide)) {
        let what = format!("{} Nodes", size.all());
        measured(&what, async { points.push(point(program, size, &what).await) }).await;
    }
    if points.len() < 2 {
        return false;
    }
    for (n, (name, title, unit)) in PICTURES.into_iter().enumerate() {
        let line: Vec<(f64, f64)> = points.iter().map(|point| (point.nodes, point.figures[n])).collect();
        let (slope, at_zero) = fit(&line);
        let told = format!("{title}: {at_zero:.2} {unit} and {:.3} {unit} per 1,000 Nodes", slope * 1e3);
        row(title, &told);
        if let Some(folder) = folder {
            let path = folder.join(format!("performance-{name}.svg"));
            std::fs::write(path, picture(&told, unit, &line, (slope, at_zero))).expect("written");
        }
    }
    points.len() == SIZES.len()
}

/// Measures a size, and prints its row.
async fn point(program: &Path, size: Size, what: &str) -> Point {
    let stage = Stage::open(size).await;
    let started = start(&stage, program, size).await;
    tokio::time::sleep(SETTLED).await;
    let memory = started.program.process.memory();
    let idle = idle(&started.program).await;
    let told = format!(
        "{:.0} MB, peak {:.0} MB; start {}; idle {idle:.2} %",
        memory.resident,
        memory.peak,
        started.told()
    );
    row(what, &told);
    Point { nodes: size.all() as f64, figures: [memory.resident, started.took.as_secs_f64(), idle] }
}

/// The line through these points by least squares: slope, and value at zero.
fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
    let (up, across) =
        points.iter().fold((0.0, 0.0), |(a, b), (px, py)| (a + (px - x) * (py - y), b + (px - x) * (px - x)));
    (up / across, y - up / across * x)
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 56.0;

fn picture(title: &str, unit: &str, points: &[(f64, f64)], (slope, at_zero): (f64, f64)) -> String {
    let most = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let (most_x, most_y) = (most(|point| point.0), most(|point| point.1) * 1.1);
    let x = |nodes: f64| MARGIN + nodes / most_x * (WIDTH - 2.0 * MARGIN);
    let y = |figure: f64| HEIGHT - MARGIN - figure / most_y * (HEIGHT - 2.0 * MARGIN);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{title}</text>\n\
         <path d=\"M{MARGIN} {MARGIN}V{0}H{1}\" fill=\"none\" stroke=\"#666\"/>\n\
         <line x1=\"{MARGIN}\" y1=\"{2:.1}\" x2=\"{3:.1}\" y2=\"{4:.1}\" stroke=\"#27b\" stroke-dasharray=\"4 3\"/>\n",
        HEIGHT - MARGIN,
        WIDTH - MARGIN,
        y(at_zero.max(0.0)),
        x(most_x),
        y(at_zero + slope * most_x),
    );
    for (nodes, figure) in points {
        let (x, y) = (x(*nodes), y(*figure));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#27b\"/>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{figure:.1} {unit}</text>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0} k</text>",
            y - 9.0,
            HEIGHT - MARGIN + 18.0,
            nodes / 1e3
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">Nodes</text>\n</svg>",
        WIDTH - MARGIN,
        HEIGHT - 14.0
    );
    out
}
