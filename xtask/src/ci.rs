//! `cargo xtask ci`: every check of the repository, in the order that fails fastest.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// One check: a name and the command that makes it.
struct Step {
    name: &'static str,
    args: &'static [&'static str],
    rustdoc_warnings: bool,
}

const STEPS: &[Step] = &[
    Step { name: "fmt", args: &["fmt", "--all", "--check"], rustdoc_warnings: false },
    Step { name: "tidy", args: &["xtask", "tidy"], rustdoc_warnings: false },
    Step { name: "ptx", args: &["xtask", "ptx", "--check"], rustdoc_warnings: false },
    Step {
        name: "clippy",
        args: &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        rustdoc_warnings: false,
    },
    Step {
        name: "test",
        args: &["test", "--workspace", "--locked", "--no-fail-fast"],
        rustdoc_warnings: false,
    },
    Step { name: "doc", args: &["doc", "--workspace", "--no-deps", "--locked"], rustdoc_warnings: true },
];

/// Runs all checks; returns the names of those that failed.
pub fn run(root: &Path) -> Result<Vec<&'static str>, std::io::Error> {
    let mut failed = Vec::new();
    let mut times = Vec::new();
    for step in STEPS {
        println!("==> {}: cargo {}", step.name, step.args.join(" "));
        let start = Instant::now();
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root).args(step.args);
        if step.rustdoc_warnings {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        if !command.status()?.success() {
            failed.push(step.name);
        }
        times.push((step.name, start.elapsed().as_secs()));
    }
    deny(root, &mut failed)?;
    for (name, seconds) in times {
        println!("{name:>8} {seconds:>5} s {}", if failed.contains(&name) { "FAILED" } else { "ok" });
    }
    Ok(failed)
}

/// `cargo deny` where it is installed; the advisory database is not needed for these checks.
fn deny(root: &Path, failed: &mut Vec<&'static str>) -> Result<(), std::io::Error> {
    let present = Command::new("cargo-deny").arg("--version").output().is_ok_and(|o| o.status.success());
    if !present {
        println!("==> deny: skipped, cargo-deny is not installed (`cargo install cargo-deny`)");
        return Ok(());
    }
    println!("==> deny: cargo deny check licenses bans sources");
    let args = ["--offline", "check", "licenses", "bans", "sources"];
    if !Command::new("cargo-deny").current_dir(root).args(args).status()?.success() {
        failed.push("deny");
    }
    Ok(())
}
