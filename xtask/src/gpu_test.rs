//! `cargo xtask gpu-test`: runs the GPU tests, or packs them and the benchmark for a machine without Rust.

use crate::TaskError;
use crate::nvcc::{program, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RUN: &str = "#!/bin/sh
# Runs every GPU test; a skipped one is a failure. `./gpu_bench [filter]...` times the kernels.
cd \"$(dirname \"$0\")\" && MAMBA_GPU=required exec ./gpu \"$@\"
";

/// Builds tests and benchmark in release; runs the tests, or copies both with a run script into `archive`.
pub fn gpu_test(root: &Path, archive: Option<&Path>) -> Result<Vec<String>, TaskError> {
    let tests = build(root, "gpu", &["test", "--no-run", "--test", "gpu"])?;
    let bench = build(root, "gpu_bench", &["build", "--bin", "gpu_bench"])?;
    let Some(folder) = archive else {
        let mut command = Command::new(&tests);
        command.current_dir(root.join("tests")).env("MAMBA_GPU", "required");
        run(&mut command, "the GPU tests")?;
        return Ok(Vec::new());
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let stripped = pack(&tests, &folder.join("gpu"))? && pack(&bench, &folder.join("gpu_bench"))?;
    copy_folder(&root.join("tests/golden"), &folder.join("golden"))?;
    let script = folder.join("run.sh");
    fs::write(&script, RUN).map_err(at(&script))?;
    println!("{}: sh run.sh{}", folder.display(), if stripped { "" } else { " (not stripped)" });
    Ok(Vec::new())
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> TaskError {
    let path = path.to_owned();
    move |source| TaskError::File { path, source }
}

/// Copies the golden data, which lie in one level of folders or more.
fn copy_folder(from: &Path, to: &Path) -> Result<(), TaskError> {
    fs::create_dir_all(to).map_err(at(to))?;
    for entry in fs::read_dir(from).map_err(at(from))? {
        let entry = entry.map_err(at(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match source.is_dir() {
            true => copy_folder(&source, &target)?,
            false => fs::copy(&source, &target).map(drop).map_err(at(&source))?,
        }
    }
    Ok(())
}

/// Copies an executable; whether it could be stripped. Without `strip` it is larger and runs as well.
fn pack(executable: &Path, target: &Path) -> Result<bool, TaskError> {
    fs::copy(executable, target).map_err(at(target))?;
    Ok(Command::new("strip").arg(target).status().is_ok_and(|s| s.success()))
}

/// Builds one target of the test crate in release; its executable, from cargo's own messages.
fn build(root: &Path, name: &str, arguments: &[&str]) -> Result<PathBuf, TaskError> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(arguments).args(["--release", "--package", "mamba-tests"]);
    let out = cargo.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit()).output()?;
    if !out.status.success() {
        return Err(program("cargo", "failed"));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let messages = text.lines().rev().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    let mut executables = messages.filter(|m| m["target"]["name"] == name);
    let found = executables.find_map(|m| m["executable"].as_str().map(PathBuf::from));
    found.ok_or_else(|| program("cargo", "named no executable"))
}
