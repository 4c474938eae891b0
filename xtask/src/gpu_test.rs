//! `cargo xtask gpu-test`: runs the GPU tests, or packs them and the benchmark for a machine without Rust.

use crate::TaskError;
use crate::nvcc::{program, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RUN: &str = "#!/bin/sh
# Runs every GPU test, then the short ones under NVIDIA's compute-sanitizer. A skipped test or a missing sanitizer is a
# failure. With arguments: only the tests that they select. `./gpu_bench [filter]...` times kernels and steps.
cd \"$(dirname \"$0\")\" && export MAMBA_GPU=required || exit 1
[ $# -gt 0 ] && exec ./gpu \"$@\"
failed=
./gpu || failed=' tests'
# Loading a kernel asks for one parameter more than there should be: an error of the driver's that is no fault.
for tool in memcheck racecheck; do
    if compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 1 ./gpu smoke > $tool.log 2>&1; then
        echo \"$tool: clean\"
    else
        tail -n 40 $tool.log
        failed=\"$failed $tool\"
    fi
done
[ -z \"$failed\" ] || { echo \"failed:$failed\"; exit 1; }
";

/// Builds tests and benchmark in release and packs them with a script; runs the script unless an archive was asked for.
pub fn gpu_test(root: &Path, archive: Option<&Path>) -> Result<Vec<String>, TaskError> {
    let folder = archive.map_or_else(|| root.join("target/gpu-test"), Path::to_owned);
    let script = folder.join("run.sh");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let tests = build(root, "gpu", &["test", "--no-run", "--test", "gpu"])?;
    let bench = build(root, "gpu_bench", &["build", "--bin", "gpu_bench"])?;
    let stripped = pack(&tests, &folder.join("gpu"))? && pack(&bench, &folder.join("gpu_bench"))?;
    copy_folder(&root.join("tests/golden"), &folder.join("golden"))?;
    fs::write(&script, RUN).map_err(at(&script))?;
    match archive {
        None => run(Command::new("sh").arg(&script), "the GPU tests")?,
        Some(_) => println!("sh {}{}", script.display(), if stripped { "" } else { " (not stripped)" }),
    }
    Ok(Vec::new())
}

/// Builds the benchmark in release and runs it.
pub fn bench(root: &Path, arguments: &[String]) -> Result<Vec<String>, TaskError> {
    let bench = build(root, "gpu_bench", &["build", "--bin", "gpu_bench"])?;
    run(Command::new(bench).args(arguments), "the benchmark")?;
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
