//! What the user sees during a training: a bar on a terminal, plain lines elsewhere.

use crate::run_folder::Record;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Progress of a training, on stderr.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    steps: u64,
}

impl Progress {
    /// Progress towards `steps`, of which `done` are done.
    pub fn new(steps: u64, done: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr_with_hz(8));
            let template = "{bar:30} {pos}/{len} {msg} eta {eta}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            // The estimate of the time left counts from here.
            bar.set_position(done);
            bar.reset_eta();
            bar
        });
        Self { bar, steps }
    }

    /// A step was done; moves the bar.
    pub fn step(&self, step: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(step);
        }
    }

    /// A line was logged. `left` is the time to the end, as far as it can be told.
    pub fn logged(&self, record: &Record, left: Option<Duration>) {
        let text = describe(record);
        match &self.bar {
            Some(bar) => bar.set_message(text),
            None => {
                let eta = left.map_or(String::new(), |t| format!("  eta {}", clock(t)));
                self.line(&format!("step {}/{}  {text}{eta}", record.step, self.steps));
            }
        }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| write_stderr(text)),
            None => write_stderr(text),
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// stderr may be closed; the training goes on then.
fn write_stderr(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn describe(record: &Record) -> String {
    let mut parts = Vec::new();
    parts.extend(record.loss.map(|v| format!("loss {v:.4}")));
    parts.extend(record.lr.map(|v| format!("lr {v:.2e}")));
    parts.extend(record.grad_norm.map(|v| format!("norm {v:.3}")));
    parts.extend(record.tokens_per_second.map(|v| format!("{} tokens/s", thousands(v.round() as u64))));
    parts.join("  ")
}

/// Whole seconds as m:ss or h:mm:ss.
pub fn clock(time: Duration) -> String {
    let s = time.as_secs();
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

/// A number with commas.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A number with its noun: 1 layer, 2 layers.
pub fn count(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", thousands(n), if n == 1 { "" } else { "s" })
}

/// Text for a terminal: control characters, which could do anything to it, are escaped.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let harmless = |c: char| !c.is_control() || c == '\n' || c == '\t';
    text.chars().map(|c| if harmless(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// Prints to stdout; a reader that has gone away is no error.
pub fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_read_well() {
        assert_eq!(
            (thousands(0), thousands(999), thousands(1_234_567)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
        assert_eq!(clock(Duration::from_secs(75)), "1:15");
        assert_eq!(clock(Duration::from_secs(3 * 3600 + 5)), "3:00:05");
    }

    #[test]
    fn nouns_are_counted_and_control_characters_escaped() {
        assert_eq!((count(1, "layer"), count(2000, "step")), ("1 layer".into(), "2,000 steps".into()));
        assert_eq!(printable(b"a\tb\n\x1b[31m\0\xff"), "a\tb\n\\u{1b}[31m\\u{0}\u{fffd}");
    }

    #[test]
    fn records_name_what_they_have() {
        let record = Record { loss: Some(1.5), tokens_per_second: Some(20_000.4), ..Record::default() };
        assert_eq!(describe(&record), "loss 1.5000  20,000 tokens/s");
    }
}
