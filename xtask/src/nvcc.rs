//! The pinned CUDA compiler: found, or installed from wheels into `target/`.

use crate::TaskError;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Version whose PTX is committed.
pub const VERSION: &str = "13.0";
const PACKAGES: [&str; 5] =
    ["nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl"];

/// Compiler and assembler of the pinned version.
pub struct Toolchain {
    /// `nvcc`.
    pub nvcc: PathBuf,
    /// `ptxas`.
    pub ptxas: PathBuf,
}

/// Finds the compiler on the path, or installs it into `target/cuda`.
pub fn find(root: &Path) -> Result<Toolchain, TaskError> {
    if let Some(tools) = open(Path::new("")) {
        return Ok(tools);
    }
    let venv = root.join("target").join("cuda");
    if let Some(tools) = installed(&venv) {
        return Ok(tools);
    }
    install(&venv)?;
    installed(&venv).ok_or_else(|| program("nvcc", "is not where its wheels should have put it"))
}

/// The compiler below `folder` (empty: on the path), where its version is the pinned one.
fn open(folder: &Path) -> Option<Toolchain> {
    let nvcc = folder.join("nvcc");
    let out = Command::new(&nvcc).arg("--version").output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8_lossy(&out.stdout);
    let version = text.lines().find_map(|l| l.split("release ").nth(1))?.trim();
    version.starts_with(VERSION).then(|| Toolchain { nvcc, ptxas: folder.join("ptxas") })
}

fn installed(venv: &Path) -> Option<Toolchain> {
    let libs = std::fs::read_dir(venv.join("lib")).ok()?;
    libs.flatten().find_map(|python| open(&python.path().join("site-packages/nvidia/cu13/bin")))
}

fn install(venv: &Path) -> Result<(), TaskError> {
    eprintln!("installing the CUDA {VERSION} compiler into {}", venv.display());
    run(Command::new("python3").args(["-m", "venv"]).arg(venv), "python3 -m venv")?;
    let mut pip = Command::new(venv.join("bin").join("python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    pip.args(PACKAGES.map(|p| format!("{p}=={VERSION}.*")));
    run(&mut pip, "pip install")
}

/// Runs a program; its output passes through.
pub fn run(command: &mut Command, name: &str) -> Result<(), TaskError> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(program(name, &format!("ended with {status}"))),
        Err(error) => Err(program(name, &format!("cannot be started: {error}"))),
    }
}

/// An error about a program.
pub fn program(name: &str, problem: &str) -> TaskError {
    TaskError::Program { program: name.to_owned(), problem: problem.to_owned() }
}
