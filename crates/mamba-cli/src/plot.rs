//! The loss curve as SVG (with text) and PNG (no font library: the few characters of its labels are drawn here).

use crate::error::{CliError, Result};
use crate::run_folder::Record;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const SIZE: (u32, u32) = (960, 540);
const TRAIN: RGBColor = RGBColor(31, 119, 180);
const VALIDATION: RGBColor = RGBColor(214, 80, 30);
const INK: RGBColor = RGBColor(60, 60, 60);
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Where the names of the curves begin, and their upper edge.
const LEGEND: (i32, i32) = (SIZE.0 as i32 - 250, SIZE.0 as i32 - 110);
const LEGEND_TOP: i32 = 38;

type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Points of the curves, in nats over steps.
#[derive(Debug, Default, PartialEq)]
struct Curves {
    train: Vec<(f64, f64)>,
    validation: Vec<(f64, f64)>,
}

impl Curves {
    fn new(records: &[Record]) -> Self {
        let points = |value: fn(&Record) -> Option<f64>| {
            let finite = |r: &Record| value(r).filter(|v| v.is_finite()).map(|v| (r.step as f64, v));
            records.iter().filter_map(finite).collect()
        };
        Self { train: points(|r| r.loss), validation: points(|r| r.val_loss) }
    }

    /// Ranges of both axes, with a margin; `None` without points.
    fn ranges(&self) -> Option<[(f64, f64); 2]> {
        let all = || self.train.iter().chain(&self.validation);
        let range = |of: fn(&(f64, f64)) -> f64| {
            all().map(of).fold(None, |r: Option<(f64, f64)>, v| match r {
                Some((lo, hi)) => Some((lo.min(v), hi.max(v))),
                None => Some((v, v)),
            })
        };
        let ((_, last), (lo, hi)) = (range(|p| p.0)?, range(|p| p.1)?);
        let margin = (0.05 * (hi - lo)).max(1e-3);
        Some([(0.0, last.max(1.0)), (lo - margin, hi + margin)])
    }
}

/// Draws the loss curve of a run as `loss.svg` and `loss.png`; nothing without points.
pub fn draw(records: &[Record], folder: &Path) -> Result<()> {
    let curves = Curves::new(records);
    let Some(ranges) = curves.ranges() else { return Ok(()) };
    let svg = folder.join("loss.svg");
    let root = SVGBackend::new(&svg, SIZE).into_drawing_area();
    picture(&root, &curves, ranges, svg_labels).map_err(failed(&svg))?;
    let png = folder.join("loss.png");
    let root = BitMapBackend::new(&png, SIZE).into_drawing_area();
    picture(&root, &curves, ranges, bitmap_labels).map_err(failed(&png))
}

type Labels<B> = fn(&DrawingArea<B, Shift>, &[Label]) -> std::result::Result<(), DrawError<B>>;
type DrawError<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn failed<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> CliError + '_ {
    move |error| CliError::Plot { path: path.to_owned(), problem: error.to_string() }
}

fn picture<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    curves: &Curves,
    [x, y]: [(f64, f64); 2],
    labels: Labels<B>,
) -> std::result::Result<(), DrawError<B>> {
    root.fill(&WHITE)?;
    let mut chart: Chart<'_, B> = ChartBuilder::on(root)
        .margin(20)
        .margin_top(64)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
    let mut texts = names();
    for value in tick_values(x) {
        chart.draw_series(LineSeries::new([(value, y.0), (value, y.1)], GRID))?;
        texts.push(Label::below(value, chart.backend_coord(&(value, y.0))));
    }
    for value in tick_values(y) {
        chart.draw_series(LineSeries::new([(x.0, value), (x.1, value)], GRID))?;
        texts.push(Label::left(value, chart.backend_coord(&(x.0, value))));
    }
    chart.draw_series(LineSeries::new([(x.0, y.1), (x.0, y.0), (x.1, y.0)], INK))?;
    chart.draw_series(LineSeries::new(curves.train.iter().copied(), TRAIN.stroke_width(1)))?;
    chart.draw_series(LineSeries::new(curves.validation.iter().copied(), VALIDATION.stroke_width(2)))?;
    let dots = curves.validation.iter().map(|&p| Circle::new(p, 3, VALIDATION.filled()));
    chart.draw_series(dots)?;
    for (x, color, width) in [(LEGEND.0, TRAIN, 1), (LEGEND.1, VALIDATION, 2)] {
        let y = LEGEND_TOP + 5;
        root.draw(&PathElement::new([(x - 32, y), (x - 8, y)], color.stroke_width(width)))?;
    }
    labels(root, &texts)?;
    root.present()
}

/// A text in the picture.
struct Label {
    text: String,
    /// Upper left corner, middle of the upper edge or upper right corner.
    at: (i32, i32),
    anchor: HPos,
    color: RGBColor,
}

impl Label {
    fn new(text: &str, at: (i32, i32), anchor: HPos, color: RGBColor) -> Self {
        Self { text: text.to_owned(), at, anchor, color }
    }

    fn below(value: f64, (x, y): (i32, i32)) -> Self {
        Self::new(&number(value), (x, y + 8), HPos::Center, INK)
    }

    fn left(value: f64, (x, y): (i32, i32)) -> Self {
        Self::new(&number(value), (x - 8, y - 6), HPos::Right, INK)
    }
}

/// Title, names of the axes and of the curves.
fn names() -> Vec<Label> {
    let (width, height) = (SIZE.0 as i32, SIZE.1 as i32);
    vec![
        Label::new("training and validation loss", (width / 2, 12), HPos::Center, INK),
        Label::new("step", (width / 2, height - 22), HPos::Center, INK),
        Label::new("loss, nats per token", (20, LEGEND_TOP), HPos::Left, INK),
        Label::new("training", (LEGEND.0, LEGEND_TOP), HPos::Left, TRAIN),
        Label::new("validation", (LEGEND.1, LEGEND_TOP), HPos::Left, VALIDATION),
    ]
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Round values, about six of them.
fn tick_values((lo, hi): (f64, f64)) -> Vec<f64> {
    let raw = (hi - lo) / 6.0;
    let power = 10f64.powf(raw.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= raw).unwrap_or(10.0 * power);
    let first = (lo / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|v| *v <= hi).collect()
}

fn svg_labels<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    labels: &[Label],
) -> std::result::Result<(), DrawError<B>> {
    for label in labels {
        let place = Pos::new(label.anchor, VPos::Top);
        let style = ("sans-serif", 14).into_font().color(&label.color).pos(place);
        root.draw(&Text::new(label.text.clone(), label.at, style))?;
    }
    Ok(())
}

/// Digits and the capitals of the labels, three columns by five rows, one octal digit a row.
const GLYPHS: [(char, u16); 28] = [
    ('0', 0o75557),
    ('1', 0o26227),
    ('2', 0o71747),
    ('3', 0o71717),
    ('4', 0o55711),
    ('5', 0o74717),
    ('6', 0o74757),
    ('7', 0o71111),
    ('8', 0o75757),
    ('9', 0o75717),
    ('.', 0o00002),
    ('-', 0o00700),
    (',', 0o00024),
    ('A', 0o25755),
    ('D', 0o65556),
    ('E', 0o74647),
    ('G', 0o34553),
    ('I', 0o72227),
    ('K', 0o55655),
    ('L', 0o44447),
    ('N', 0o65555),
    ('O', 0o25552),
    ('P', 0o65644),
    ('R', 0o65655),
    ('S', 0o34216),
    ('T', 0o72222),
    ('V', 0o55552),
    (' ', 0),
];
/// Pixels of a glyph's dot.
const DOT: i32 = 2;

fn bitmap_labels<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    labels: &[Label],
) -> std::result::Result<(), DrawError<B>> {
    for label in labels {
        let width = label.text.chars().count() as i32 * 4 * DOT;
        let left = match label.anchor {
            HPos::Left => label.at.0,
            HPos::Center => label.at.0 - width / 2,
            HPos::Right => label.at.0 - width,
        };
        for (i, c) in label.text.chars().enumerate() {
            glyph(root, c, (left + i as i32 * 4 * DOT, label.at.1), label.color)?;
        }
    }
    Ok(())
}

/// The dots of a character; a letter is drawn as its capital.
fn bits(c: char) -> Option<u16> {
    GLYPHS.iter().find(|g| g.0 == c.to_ascii_uppercase()).map(|g| g.1)
}

fn glyph<B: DrawingBackend>(
    root: &DrawingArea<B, Shift>,
    c: char,
    (left, top): (i32, i32),
    color: RGBColor,
) -> std::result::Result<(), DrawError<B>> {
    let bits = bits(c).unwrap_or_default();
    for (row, column) in (0..5).flat_map(|r| (0..3).map(move |c| (r, c))) {
        if bits >> (3 * (4 - row) + 2 - column) & 1 == 1 {
            let (x, y) = (left + column * DOT, top + row * DOT);
            root.draw(&Rectangle::new([(x, y), (x + DOT, y + DOT)], color.filled()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64, loss: Option<f64>, val_loss: Option<f64>) -> Record {
        Record { step, loss, val_loss, ..Record::default() }
    }

    #[test]
    fn both_pictures_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let records: Vec<Record> =
            (1..50).map(|i| record(i, Some(5.0 / i as f64), (i % 10 == 0).then_some(1.0))).collect();
        draw(&records, folder.path()).unwrap();
        let svg = std::fs::read_to_string(folder.path().join("loss.svg")).unwrap();
        for text in ["validation", "training", "loss, nats per token", "step", "<polyline", "<circle"] {
            assert!(svg.contains(text), "{text}");
        }
        let png = std::fs::read(folder.path().join("loss.png")).unwrap();
        assert_eq!(png[..8], *b"\x89PNG\r\n\x1a\n");
        // Width and height stand in the header.
        assert_eq!(png[16..24], [0, 0, 0x03, 0xc0, 0, 0, 0x02, 0x1c]);
    }

    #[test]
    fn every_character_of_a_label_can_be_drawn() {
        for c in names().iter().flat_map(|l| l.text.chars()) {
            assert!(bits(c).is_some(), "{c}");
        }
    }

    #[test]
    fn nothing_and_one_point_are_fine() {
        let folder = tempfile::tempdir().unwrap();
        draw(&[], folder.path()).unwrap();
        draw(&[record(1, Some(f64::NAN), None)], folder.path()).unwrap();
        assert!(!folder.path().join("loss.png").exists());
        draw(&[record(1, Some(2.0), None)], folder.path()).unwrap();
        assert!(folder.path().join("loss.png").exists());
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(tick_values((0.0, 1000.0)), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(tick_values((1.32, 5.7)), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!((number(0.5), number(200.0), number(-1.25)), ("0.5".into(), "200".into(), "-1.25".into()));
    }
}
