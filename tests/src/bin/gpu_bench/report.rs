//! All figures of a run: the largest gaps, and a file for spreadsheets.

use std::fmt::Write as _;
use std::path::Path;

/// Gaps that the summary shows.
const SHOWN: usize = 10;

/// Measured figures.
#[derive(Default)]
pub struct Report(Vec<Figure>);

struct Figure {
    name: String,
    microseconds: f64,
    floor: Option<f64>,
}

impl Report {
    /// Adds a figure, in µs.
    pub fn add(&mut self, name: &str, microseconds: f64, floor: Option<f64>) {
        self.0.push(Figure { name: name.to_owned(), microseconds, floor });
    }

    /// Prints what is farthest from its floor.
    pub fn summary(&self) {
        let gap = |f: &Figure| f.floor.map(|floor| f.microseconds - floor);
        let mut gaps: Vec<(f64, &Figure)> = self.0.iter().filter_map(|f| Some((gap(f)?, f))).collect();
        gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
        if !gaps.is_empty() {
            println!("largest gaps");
        }
        for (gap, figure) in gaps.iter().take(SHOWN) {
            println!("    {gap:>10.1} µs above the floor  {}", figure.name);
        }
    }

    /// Writes `name,us,floor_us,share`.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut text = "name,us,floor_us,share\n".to_owned();
        for Figure { name, microseconds, floor } in &self.0 {
            let tail = floor.map_or(",".to_owned(), |f| format!("{f:.2},{:.3}", f / microseconds));
            let _ = writeln!(text, "\"{name}\",{microseconds:.2},{tail}");
        }
        std::fs::write(path, text)
    }
}
