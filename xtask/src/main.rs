//! Developer tasks of this workspace: PTX, checks, GPU tests.
//!
//! `cargo xtask <verb>`; one verb a file.

mod ci;
mod gpu_test;
mod nvcc;
mod ptx;
mod regs;
mod tidy;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", about = "Developer tasks of this workspace")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run every check of the repository.
    Ci,
    /// Check the rules of the tree that no compiler checks.
    Tidy,
    /// Build the PTX from kernels/ into crates/mamba-kernels/ptx.
    Ptx {
        /// Fail where the committed PTX does not match its sources, and change nothing.
        #[arg(long)]
        check: bool,
    },
    /// Run the GPU tests, and the short ones under compute-sanitizer; a skipped one is a failure.
    GpuTest {
        /// Pack them into this folder instead, to run on a machine without Rust.
        #[arg(long)]
        archive: Option<PathBuf>,
    },
    /// Time kernels and steps on the GPU: every kernel, or what the filters select (`step`, `decode`, `gemm`…).
    Bench {
        /// Parts of names.
        filters: Vec<String>,
        /// Write every figure to this file as well.
        #[arg(long)]
        csv: Option<PathBuf>,
    },
    /// Report registers, shared memory, spills and local memory of every kernel; fail on spills and local memory.
    Regs,
}

fn main() -> ExitCode {
    let root = root();
    let result = match Cli::parse().verb {
        Verb::Ci => ci::run(&root)
            .map_err(Into::into)
            .map(|failed| failed.iter().map(|f| format!("{f} failed")).collect()),
        Verb::Tidy => tidy::run(&root).map_err(Into::into),
        Verb::Ptx { check } => ptx::run(&root, check),
        Verb::GpuTest { archive } => gpu_test::gpu_test(&root, archive.as_deref()),
        Verb::Bench { mut filters, csv } => {
            filters.extend(csv.into_iter().flat_map(|path| ["--csv".to_owned(), path.display().to_string()]));
            gpu_test::bench(&root, &filters)
        }
        Verb::Regs => regs::run(&root),
    };
    match result {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            for complaint in complaints {
                eprintln!("{complaint}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Root of the workspace.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Errors of the tasks.
#[derive(Debug, thiserror::Error)]
enum TaskError {
    /// A file operation failed.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// A program could not be started or failed.
    #[error("`{program}` {problem}")]
    Program { program: String, problem: String },
    /// Something else of the system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A source file does not say what it must.
    #[error("{path}: {problem}")]
    Source { path: PathBuf, problem: String },
}
