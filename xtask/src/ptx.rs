//! `cargo xtask ptx`: kernels/*.cu → crates/mamba-kernels/ptx, with an index that the crate embeds.
//!
//! A source file may say, in comment lines:
//! - `@target 90a`: built for compute_90a instead of compute_80; several targets on one line are built each;
//! - `@variant NAME FLAGS…`: built once a variant, with these flags. Small modules load quickly: a driver compiles
//!   the whole of a module before it runs the first kernel of it.

use crate::TaskError;
use crate::nvcc::{self, Toolchain};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

const FLAGS: [&str; 4] = ["-std=c++17", "-O3", "--ptx", "-I."];
/// Where the PTX lies.
pub const OUT: &str = "crates/mamba-kernels/ptx";
const INDEX: &str = "crates/mamba-kernels/src/ptx_index.rs";

/// One PTX file to build.
#[derive(Debug, Clone)]
pub struct Unit {
    /// `family/file` or `family/file.variant`: the module's name in the launchers.
    module: String,
    source: PathBuf,
    /// Compute capability, as compilers spell it.
    pub target: String,
    flags: Vec<String>,
}

impl Unit {
    /// Name of the PTX file.
    pub fn file_name(&self) -> String {
        format!("{}.sm{}.ptx", self.module.replace('/', "_"), self.target)
    }

    fn arch(&self) -> String {
        format!("-arch=compute_{}", self.target)
    }
}

/// Builds what has changed, or with `check` complains about it.
pub fn run(root: &Path, check: bool) -> Result<Vec<String>, TaskError> {
    let units = units(root)?;
    let stale: Vec<&Unit> = units.iter().filter(|u| !is_fresh(root, u)).collect();
    if check {
        let mut complaints: Vec<String> = stale
            .iter()
            .map(|u| format!("{} does not match its sources: run `cargo xtask ptx`", u.file_name()))
            .collect();
        complaints.extend(
            leftovers(root, &units)?
                .iter()
                .map(|p| format!("{} has no source: run `cargo xtask ptx`", p.display())),
        );
        if complaints.is_empty() && read(&root.join(INDEX))? != index(root, &units)? {
            complaints.push(format!("{INDEX} is out of date: run `cargo xtask ptx`"));
        }
        return Ok(complaints);
    }
    if !stale.is_empty() {
        let tools = nvcc::find(root)?;
        fs::create_dir_all(root.join(OUT))?;
        let problems = parallel(&stale, |unit| compile(root, &tools, unit));
        if !problems.is_empty() {
            return Ok(problems);
        }
    }
    for path in leftovers(root, &units)? {
        fs::remove_file(path)?;
    }
    write(&root.join(INDEX), &index(root, &units)?)?;
    println!("{} PTX files, {} rebuilt", units.len(), stale.len());
    Ok(Vec::new())
}

fn compile(root: &Path, tools: &Toolchain, unit: &Unit) -> Result<(), TaskError> {
    let out = root.join(OUT).join(unit.file_name());
    let temporary = out.with_extension("new");
    let mut command = Command::new(&tools.nvcc);
    command.current_dir(root.join("kernels/include")).args(FLAGS).arg(unit.arch()).args(&unit.flags);
    let result = command.arg(root.join(&unit.source)).arg("-o").arg(&temporary).output()?;
    if !result.status.success() {
        let text = String::from_utf8_lossy(&result.stderr).into_owned();
        return Err(TaskError::Source { path: unit.source.clone(), problem: text });
    }
    // The compiler's own comments name its build folder on some versions; what identifies the file is the hash.
    let body: String =
        read(&temporary)?.lines().filter(|l| !l.starts_with("//")).fold(String::new(), |mut s, l| {
            s.push_str(l);
            s.push('\n');
            s
        });
    fs::remove_file(&temporary)?;
    let body = body.trim_start();
    write(&out, &format!("{}// {}\n{body}", header(root, unit)?, hex(Sha256::digest(body))))
}

/// First lines of a PTX file: what it was made from. The hash of the text itself follows them.
fn header(root: &Path, unit: &Unit) -> Result<String, TaskError> {
    let mut hash = Sha256::new();
    let mut seen = Vec::new();
    hash_source(&root.join(&unit.source), &root.join("kernels/include"), &mut seen, &mut hash)?;
    hash.update(FLAGS.join(" "));
    hash.update(unit.arch());
    hash.update(unit.flags.join(" "));
    hash.update(nvcc::VERSION);
    Ok(format!(
        "// made from {} by `cargo xtask ptx`, nvcc {}\n// {}\n",
        unit.source.display(),
        nvcc::VERSION,
        hex(hash.finalize())
    ))
}

/// Hashes a file and, where they are first included, the headers of `include` that it includes.
fn hash_source(
    path: &Path,
    include: &Path,
    seen: &mut Vec<PathBuf>,
    hash: &mut Sha256,
) -> Result<(), TaskError> {
    if seen.iter().any(|s| s == path) {
        return Ok(());
    }
    seen.push(path.to_path_buf());
    let text = read(path)?;
    hash.update(&text);
    for line in text.lines() {
        let name = line.trim().strip_prefix("#include \"").and_then(|l| l.split('"').next());
        if let Some(name) = name {
            hash_source(&include.join(name), include, seen, hash)?;
        }
    }
    Ok(())
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut s, b| {
        // Writing to a String cannot fail.
        let _ = write!(s, "{b:02x}");
        s
    })
}

/// Whether the committed text was made from the sources as they are, and not changed since.
fn is_fresh(root: &Path, unit: &Unit) -> bool {
    let Ok(text) = fs::read_to_string(root.join(OUT).join(unit.file_name())) else { return false };
    let Ok(wanted) = header(root, unit) else { return false };
    let parts = text.strip_prefix(&wanted).and_then(|rest| rest.split_once('\n'));
    parts.is_some_and(|(line, body)| line.strip_prefix("// ") == Some(&hex(Sha256::digest(body))[..]))
}

/// All sources with their targets and variants, in order.
pub fn units(root: &Path) -> Result<Vec<Unit>, TaskError> {
    let mut units = Vec::new();
    for source in files(&root.join("kernels"), "cu")? {
        let text = read(&source)?;
        let relative = source.strip_prefix(root).unwrap_or(&source).to_path_buf();
        let stem = relative.strip_prefix("kernels").unwrap_or(&relative).with_extension("");
        let module = stem.to_string_lossy().replace('\\', "/");
        let lines = || text.lines().filter_map(|l| l.trim().strip_prefix("// "));
        let targets: Vec<String> = lines()
            .filter_map(|l| l.strip_prefix("@target "))
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect();
        let targets = if targets.is_empty() { vec!["80".to_owned()] } else { targets };
        let variants: Vec<Vec<String>> = lines()
            .filter_map(|l| l.strip_prefix("@variant "))
            .map(|l| l.split_whitespace().map(str::to_owned).collect())
            .collect();
        for target in targets {
            let unit = |module: String, flags: &[String]| Unit {
                module,
                source: relative.clone(),
                target: target.clone(),
                flags: flags.to_vec(),
            };
            if variants.is_empty() {
                units.push(unit(module.clone(), &[]));
            }
            for variant in &variants {
                if let Some((name, flags)) = variant.split_first() {
                    units.push(unit(format!("{module}.{name}"), flags));
                }
            }
        }
    }
    Ok(units)
}

/// Rust source that embeds the PTX and names its kernels.
fn index(root: &Path, units: &[Unit]) -> Result<String, TaskError> {
    let mut out = String::from("// Made by `cargo xtask ptx`.\n\nuse crate::registry::PtxModule;\n\n");
    out.push_str("/// Every PTX module of this crate.\n#[rustfmt::skip]\npub(crate) static MODULES: &[PtxModule] = &[\n");
    for unit in units {
        let file = unit.file_name();
        let text = read(&root.join(OUT).join(&file))?;
        let _ = writeln!(out, "    PtxModule {{\n        target: \"{}\",", unit.target);
        let _ = writeln!(out, "        ptx: include_str!(\"../ptx/{file}\"),\n        entries: &[");
        for symbol in entries(&text) {
            let _ = writeln!(out, "            (\"{}\", \"{symbol}\"),", demangle(&symbol));
        }
        out.push_str("        ],\n    },\n");
    }
    out.push_str("];\n");
    Ok(out)
}

/// Mangled kernel names of a PTX text.
fn entries(ptx: &str) -> Vec<String> {
    let names = ptx.lines().filter_map(|l| l.split(".entry ").nth(1));
    names.map(|l| l.trim_end_matches('(').trim().to_owned()).collect()
}

/// C++ spelling of a symbol.
pub fn demangle(symbol: &str) -> String {
    let parsed = cpp_demangle::Symbol::new(symbol).ok();
    parsed.and_then(|s| s.demangle().ok()).unwrap_or_else(|| symbol.to_owned())
}

fn leftovers(root: &Path, units: &[Unit]) -> Result<Vec<PathBuf>, TaskError> {
    let mut found = files(&root.join(OUT), "ptx").unwrap_or_default();
    found.retain(|p| !units.iter().any(|u| p.ends_with(u.file_name())));
    Ok(found)
}

fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, TaskError> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(folder).map_err(|source| TaskError::File { path: folder.to_path_buf(), source })?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A file's text.
pub fn read(path: &Path) -> Result<String, TaskError> {
    fs::read_to_string(path).map_err(|source| TaskError::File { path: path.to_path_buf(), source })
}

fn write(path: &Path, text: &str) -> Result<(), TaskError> {
    fs::write(path, text).map_err(|source| TaskError::File { path: path.to_path_buf(), source })
}

/// Runs `work` over all units on as many threads as the machine has cores; returns the errors.
pub fn parallel(units: &[&Unit], work: impl Fn(&Unit) -> Result<(), TaskError> + Sync) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let (Err(error), Ok(mut list)) = (work(unit), problems.lock()) {
                        list.push(error.to_string());
                    }
                }
            });
        }
    });
    problems.into_inner().unwrap_or_default()
}
