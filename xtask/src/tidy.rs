//! `cargo xtask tidy`: rules of the tree that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Longest source file, in lines.
const MAX_LINES: usize = 600;
/// Files that may be longer. This list only shrinks.
const LONG_FILES: &[&str] = &[];
/// Folders (or files) that may hold `unsafe` code.
const UNSAFE_ALLOWED: &[&str] =
    &["crates/mamba-cuda/", "crates/mamba-kernels/src/", "crates/mamba-data/src/mmap.rs", "tests/gpu/"];
/// Words that have no place in the product's tree.
const FORBIDDEN: &[&str] = &["TODO", "FIXME", "XXX", "/work/", "../shared"];
/// Largest sum of the golden files, in bytes.
const MAX_GOLDEN: u64 = 12 << 20;

/// Checks the tracked files below `root`; returns the complaints.
pub fn run(root: &Path) -> Result<Vec<String>, std::io::Error> {
    let mut complaints = Vec::new();
    let mut golden = 0;
    for path in tracked_files(root)? {
        let name = path.to_string_lossy().replace('\\', "/");
        let full = root.join(&path);
        if name.starts_with("tests/golden/") {
            golden += fs::metadata(&full).map_or(0, |m| m.len());
            continue;
        }
        let is_source =
            ["rs", "cu", "cuh", "toml", "md", "sh"].iter().any(|e| path.extension().is_some_and(|x| x == *e));
        if !is_source || name == "xtask/src/tidy.rs" {
            continue;
        }
        match fs::read_to_string(&full) {
            Ok(text) => check_file(&name, &text, &mut complaints),
            // A tracked file that was deleted but not committed yet.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => complaints.push(format!("{name}: {e}")),
        }
    }
    if golden > MAX_GOLDEN {
        complaints.push(format!("tests/golden holds {golden} bytes, at most {MAX_GOLDEN} are wanted"));
    }
    Ok(complaints)
}

fn check_file(name: &str, text: &str, complaints: &mut Vec<String>) {
    let code = name.ends_with(".rs") || name.ends_with(".cu") || name.ends_with(".cuh");
    let lines = text.lines().count();
    let generated = text.starts_with("// Made by `cargo xtask");
    if code && !generated && lines > MAX_LINES && !LONG_FILES.contains(&name) {
        complaints.push(format!(
            "{name}: {lines} lines, at most {MAX_LINES} are wanted; split it by what its parts do"
        ));
    }
    for (i, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", i + 1);
        if let Some(word) = FORBIDDEN.iter().find(|w| line.contains(**w)) {
            complaints.push(format!("{at}: `{word}`"));
        }
        if code && line.ends_with(char::is_whitespace) {
            complaints.push(format!("{at}: trailing white space"));
        }
        let unsafe_code = line.trim_start().starts_with("unsafe ") || line.contains(" unsafe {");
        if name.ends_with(".rs") && unsafe_code && !UNSAFE_ALLOWED.iter().any(|p| name.starts_with(p)) {
            complaints.push(format!("{at}: `unsafe` outside {UNSAFE_ALLOWED:?}"));
        }
    }
}

fn tracked_files(root: &Path) -> Result<Vec<PathBuf>, std::io::Error> {
    let out = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output()?;
    if !out.status.success() {
        return Err(std::io::Error::other("`git ls-files` failed; tidy needs a git checkout"));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.split('\0').filter(|s| !s.is_empty()).map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(name: &str, text: &str) -> Vec<String> {
        let mut list = Vec::new();
        check_file(name, text, &mut list);
        list
    }

    #[test]
    fn finds_what_it_is_for() {
        assert!(complaints("crates/a/src/lib.rs", "fn f() {}\n").is_empty());
        assert_eq!(complaints("crates/a/src/lib.rs", &"x\n".repeat(601)).len(), 1);
        let generated = format!("// Made by `cargo xtask ptx`.\n{}", "x\n".repeat(601));
        assert!(complaints("crates/a/src/lib.rs", &generated).is_empty());
        assert_eq!(complaints("crates/a/src/lib.rs", "let x = unsafe { y };\n").len(), 1);
        assert!(complaints("crates/mamba-cuda/src/lib.rs", "let x = unsafe { y };\n").is_empty());
        assert_eq!(complaints("README.md", "TODO\n").len(), 1);
        assert_eq!(complaints("kernels/a.cu", "int x; \n").len(), 1);
    }
}
