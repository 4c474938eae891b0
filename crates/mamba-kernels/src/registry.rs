//! The PTX of this build, and the kernels that a device has loaded of it.

use crate::error::{KernelError, Result};
use crate::kernel::Launch;
use crate::ptx_index::MODULES;
use mamba_cuda::{Function, Gpu, Module};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// One PTX file.
pub(crate) struct PtxModule {
    /// `80`: runs on 8.0 and newer; `90a`: runs on 9.0 only.
    pub target: &'static str,
    /// The text.
    pub ptx: &'static str,
    /// (demangled signature, symbol) of its kernels.
    pub entries: &'static [(&'static str, &'static str)],
}

impl PtxModule {
    fn runs_on(&self, capability: (i32, i32)) -> bool {
        match self.target {
            "90a" => capability == (9, 0),
            _ => capability.0 >= 8,
        }
    }
}

/// (signature, symbol, target) of every kernel of this build.
pub fn entries() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    MODULES.iter().flat_map(|m| m.entries.iter().map(|&(signature, symbol)| (signature, symbol, m.target)))
}

/// The kernels of one device. Modules are loaded when their first kernel is asked for, once in a process.
#[derive(Clone)]
pub struct Kernels {
    gpu: Gpu,
    loaded: Arc<Mutex<Loaded>>,
}

#[derive(Default)]
struct Loaded {
    modules: HashMap<usize, Module>,
    functions: HashMap<String, Function>,
}

/// What this process has loaded, by device. Kept to its end: a second trainer starts without the driver's compiler.
static LOADED: Mutex<BTreeMap<usize, Arc<Mutex<Loaded>>>> = Mutex::new(BTreeMap::new());

impl Kernels {
    /// The kernels of `gpu`, launched on its compute stream.
    pub fn new(gpu: &Gpu) -> Self {
        let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        Self { gpu: gpu.clone(), loaded: all.entry(gpu.info().ordinal).or_default().clone() }
    }

    /// The device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether this build has a kernel of this signature for the device.
    pub fn has(&self, signature: &str) -> bool {
        find(signature, self.gpu.info().capability).is_some()
    }

    /// Loads the kernel of `call`, so that its first launch does not wait for the driver's compiler.
    ///
    /// # Errors
    /// [`KernelError::Missing`], those of the driver.
    pub fn load<K: Launch>(&self, call: &K) -> Result<()> {
        self.function(call).map(drop)
    }

    // The one launch of this crate.
    #[allow(unsafe_code)]
    pub(crate) fn start<K: Launch>(&self, call: &K) -> Result<()> {
        let function = self.function(call)?;
        let dims = call.dims();
        if dims.grid.contains(&0) {
            return Ok(());
        }
        // SAFETY: the signature was compared with the kernel's, the parameter sizes at load, and `check` compared the
        // buffers' lengths with the problem; the views borrow the buffers, whose release waits for the device.
        unsafe { mamba_cuda::launch(&function, dims, &mut call.params(), self.gpu.compute())? };
        Ok(())
    }

    fn function<K: Launch>(&self, call: &K) -> Result<Function> {
        let signature = call.signature();
        // A panic while the lock was held leaves at worst a module less in the map.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded.functions.get(&signature) {
            return Ok(function.clone());
        }
        let capability = self.gpu.info().capability;
        let Some((index, symbol)) = find(&signature, capability) else {
            return Err(KernelError::Missing { signature, major: capability.0, minor: capability.1 });
        };
        let module = match loaded.modules.entry(index) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(slot) => slot.insert(Module::load(&self.gpu, MODULES[index].ptx)?),
        };
        let function = module.function(symbol, &K::parameter_bytes(), call.max_shared())?;
        loaded.functions.insert(signature, function.clone());
        Ok(function)
    }
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

/// The module and symbol of a signature; a module made for exactly this device comes first.
fn find(signature: &str, capability: (i32, i32)) -> Option<(usize, &'static str)> {
    let candidates = MODULES.iter().enumerate().filter(|(_, m)| m.runs_on(capability));
    let hits = candidates.filter_map(|(i, m)| {
        let entry = m.entries.iter().find(|(s, _)| *s == signature)?;
        Some((m.target == "90a", i, entry.1))
    });
    hits.max_by_key(|&(exact, i, _)| (exact, std::cmp::Reverse(i))).map(|(_, i, symbol)| (i, symbol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_that_of_the_ptx() {
        for module in MODULES {
            let symbols = module.ptx.lines().filter_map(|l| l.split(".entry ").nth(1));
            let found: Vec<&str> = symbols.map(|l| l.trim_end_matches('(').trim()).collect();
            let listed: Vec<&str> = module.entries.iter().map(|&(_, symbol)| symbol).collect();
            assert_eq!(found, listed, "run `cargo xtask ptx`");
            for &(signature, symbol) in module.entries {
                let demangled = cpp_demangle::Symbol::new(symbol).unwrap().demangle().unwrap();
                assert_eq!(demangled, signature);
            }
        }
    }
}
