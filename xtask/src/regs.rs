//! `cargo xtask regs`: registers, shared memory, spills and local memory of every kernel, as the assembler reports them.

use crate::TaskError;
use crate::nvcc;
use crate::ptx::{OUT, Unit, demangle, parallel, read, units};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

/// Kernels that may use local memory: a line each, the start of a demangled signature. `#` starts a comment.
const ALLOWED: &str = "kernels/local_memory.allow";

/// What one kernel uses.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Usage {
    kernel: String,
    registers: u32,
    shared: u32,
    stack: u32,
    spill_stores: u32,
    spill_loads: u32,
}

/// Prints the table; complains about spills and local memory that the manifest does not allow.
pub fn run(root: &Path) -> Result<Vec<String>, TaskError> {
    let tools = nvcc::find(root)?;
    let allowed = read(&root.join(ALLOWED)).unwrap_or_default();
    let allowed: Vec<&str> =
        allowed.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()).collect();
    let tables = Mutex::new(BTreeMap::new());
    let units = units(root)?;
    let all: Vec<&Unit> = units.iter().collect();
    let mut complaints = parallel(&all, |unit| {
        // What is compiled for the oldest device also runs on the newest that this build knows.
        let devices = if unit.target == "80" { &["80", "90"][..] } else { &[&unit.target[..]] };
        for device in devices {
            let mut assembler = Command::new(&tools.ptxas);
            assembler.arg("-v").arg(format!("-arch=sm_{device}")).args(["-o", "/dev/null"]);
            let out = assembler.arg(root.join(OUT).join(unit.file_name())).output()?;
            let text = String::from_utf8_lossy(&out.stderr).into_owned();
            if !out.status.success() {
                return Err(TaskError::Source { path: unit.file_name().into(), problem: text });
            }
            if let Ok(mut map) = tables.lock() {
                map.insert(format!("{} on sm_{device}", unit.file_name()), report(&text));
            }
        }
        Ok(())
    });
    println!("registers  shared  stack  spills  kernel");
    for (file, kernels) in tables.into_inner().unwrap_or_default() {
        println!("{file}");
        for u in kernels {
            let spills = u.spill_stores + u.spill_loads;
            println!("{:9} {:7} {:6} {spills:7}  {}", u.registers, u.shared, u.stack, u.kernel);
            let local = u.stack > 0 || spills > 0;
            if local && !allowed.iter().any(|a| u.kernel.starts_with(a)) {
                complaints.push(format!(
                    "{file} {}: {} bytes of stack, {spills} bytes of spills; mend it, or allow it in {ALLOWED}",
                    u.kernel, u.stack
                ));
            }
        }
    }
    Ok(complaints)
}

/// The kernels of an assembler's report.
fn report(text: &str) -> Vec<Usage> {
    let mut kernels: Vec<Usage> = Vec::new();
    for line in text.lines() {
        let line = line.trim().trim_start_matches("ptxas info").trim_start_matches([' ', ':']);
        if let Some(rest) = line.strip_prefix("Compiling entry function '") {
            let kernel = demangle(rest.split('\'').next().unwrap_or(rest));
            kernels.push(Usage { kernel, ..Usage::default() });
            continue;
        }
        let Some(usage) = kernels.last_mut() else { continue };
        let before = |unit: &str| line.split(unit).next().and_then(last_number).unwrap_or(0);
        if line.contains("bytes stack frame") {
            usage.stack = before(" bytes stack frame");
            usage.spill_stores = before(" bytes spill stores");
            usage.spill_loads = before(" bytes spill loads");
        } else if line.starts_with("Used ") {
            usage.registers = before(" registers");
            usage.shared = if line.contains(" bytes smem") { before(" bytes smem") } else { 0 };
        }
    }
    kernels
}

fn last_number(text: &str) -> Option<u32> {
    text.rsplit([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_assembler() {
        let text = "ptxas info    : Compiling entry function '_Z3fooii' for 'sm_80'\n\
                    ptxas info    : Function properties for _Z3fooii\n    \
                    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
                    ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 380 bytes cmem[0]\n";
        let want = Usage {
            kernel: "foo(int, int)".into(),
            registers: 40,
            shared: 1024,
            stack: 8,
            spill_stores: 4,
            spill_loads: 12,
        };
        assert_eq!(report(text), [want]);
    }
}
