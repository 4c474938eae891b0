//! Runs the built `mamba` on tiny data.

// Helpers outside of test functions panic too.
#![allow(clippy::unwrap_used, clippy::panic)]

mod errors;
mod models;
mod resume;
mod signals;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A temporary folder with a text to learn.
struct Place {
    folder: tempfile::TempDir,
}

/// A training of a fraction of a second.
const TINY: &str = "--d-model 16 --layers 2 --d-state 4 --batch 2 --seq-len 32 --steps 12 --threads 1 \
                        --log-every 2 --eval-every 4 --eval-batches 2 --save-every 3 --sample-tokens 8";

impl Place {
    fn with_text() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        let lines = (0..600u32).map(|i| format!("line {i}: {} and {}\n", i * i % 97, i * 7 % 31));
        std::fs::write(place.path("text.txt"), lines.collect::<String>()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command with blanks between its arguments, run in the folder.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mamba"));
        command.args(line.split_whitespace()).current_dir(self.folder.path());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs a command that must succeed; gives its stdout.
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command that must fail with this code and one line on stderr; gives the line.
    fn fails(&self, code: i32, line: &str) -> String {
        let output = self.run(line);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}: {errors}");
        let begin = errors.starts_with("error: ");
        assert!(begin && errors.lines().count() == 1, "{line}: {errors}");
        errors
    }

    /// `train` on the text with the tiny model into `out`.
    fn train(&self, out: &str, extra: &str) -> String {
        self.ok(&format!("train --data text.txt --out {out} {TINY} {extra}"))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The lines of a run's metrics without the time.
    fn metrics(&self, run: &str) -> Vec<serde_json::Value> {
        read_metrics(&self.path(run).join("metrics.jsonl"))
    }
}

fn read_metrics(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let without_time = |line: &str| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("tokens_per_second");
        value
    };
    text.lines().map(without_time).collect()
}
