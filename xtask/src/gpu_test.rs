//! `cargo xtask gpu-test`: runs the GPU tests, or packs them for a machine without Rust.

use crate::TaskError;
use crate::nvcc::{program, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RUN: &str = "#!/bin/sh\n# Runs every GPU test; a skipped one is a failure.\ncd \"$(dirname \"$0\")\" && MAMBA_GPU=required exec ./gpu \"$@\"\n";

/// Builds the tests in release; runs them, or copies them with a run script into `archive`.
pub fn gpu_test(root: &Path, archive: Option<&Path>) -> Result<Vec<String>, TaskError> {
    let executable = build(root)?;
    let Some(folder) = archive else {
        run(Command::new(&executable).env("MAMBA_GPU", "required"), "the GPU tests")?;
        return Ok(Vec::new());
    };
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| TaskError::File { path, source }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let (binary, script) = (folder.join("gpu"), folder.join("run.sh"));
    fs::copy(&executable, &binary).map_err(at(&binary))?;
    fs::write(&script, RUN).map_err(at(&script))?;
    // A stripped binary travels lighter; without `strip` it runs as well.
    let stripped = Command::new("strip").arg(&binary).status().is_ok_and(|s| s.success());
    println!("{}: sh run.sh{}", folder.display(), if stripped { "" } else { " (not stripped)" });
    Ok(Vec::new())
}

/// The test executable, from cargo's own messages.
fn build(root: &Path) -> Result<PathBuf, TaskError> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args([
        "test",
        "--release",
        "--no-run",
        "--package",
        "mamba-tests",
        "--test",
        "gpu",
    ]);
    let out = cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit()).output()?;
    if !out.status.success() {
        return Err(program("cargo test --no-run", "failed"));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let found =
        text.lines().rev().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok()).find_map(
            |message| {
                let is_test = message["target"]["name"] == "gpu";
                message["executable"].as_str().filter(|_| is_test).map(PathBuf::from)
            },
        );
    found.ok_or_else(|| program("cargo test --no-run", "named no executable"))
}
