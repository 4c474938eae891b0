//! Launchers and PTX compared, in both directions: every entry has a launcher with its name and parameters, and every
//! launcher has an entry. Template arguments are chosen at run time, by functions with tests of their own.

use crate::conv::{ConvBackward, ConvForward};
use crate::elementwise::{Add, AddBias, Cast, ColumnSums, Fill, Scale};
use crate::embedding::{Count, EmbeddingForward, Fold, Runs, Sort, Starts};
use crate::fold::FoldParts;
use crate::gemm::{GemmMma, GemmSimt, GemmWgmma};
use crate::loss::{CrossEntropy, SumLoss};
use crate::norm::{RmsNormBackward, RmsNormForward};
use crate::optim::{AdamW, Decide, GradSums, Refresh, SpanClip, SpanSums};
use crate::ptx_index::MODULES;
use crate::scan::{FoldStates, ScanBackward, ScanForward};
use crate::{Elem, Kernel};
use half::{bf16, f16};
use std::collections::BTreeSet;

/// Kernel name and parameter list.
type Call = (String, String);

#[derive(Default)]
struct Launchers(BTreeSet<Call>);

impl Launchers {
    fn add<K: Kernel>(&mut self) {
        self.0.insert((K::NAME.to_owned(), K::arguments()));
    }

    /// Kernels that are generic over one storage type.
    fn storage<T: Elem>(&mut self) {
        self.add::<ConvForward<'_, T>>();
        self.add::<ConvBackward<'_, T>>();
        self.add::<ScanForward<'_, T>>();
        self.add::<ScanBackward<'_, T>>();
        self.add::<FoldStates<'_, T>>();
        self.add::<CrossEntropy<'_, T>>();
        self.add::<EmbeddingForward<'_, T>>();
        self.add::<AdamW<'_, T>>();
        self.add::<Refresh<'_, T>>();
        self.add::<Add<'_, T>>();
        self.add::<Scale<'_, T>>();
        self.add::<Fill<'_, T>>();
        self.add::<AddBias<'_, T>>();
        self.add::<ColumnSums<'_, T>>();
        self.add::<RmsNormForward<'_, T, T>>();
        self.add::<RmsNormBackward<'_, T, T>>();
        self.add::<RmsNormForward<'_, T, f32>>();
        self.add::<RmsNormBackward<'_, T, f32>>();
        self.add::<GemmMma<'_, T, T>>();
        self.add::<GemmMma<'_, T, f32>>();
    }

    /// Kernels that exist for half precision only.
    fn half<T: Elem>(&mut self) {
        self.add::<GemmWgmma<'_, T, T>>();
        self.add::<GemmWgmma<'_, T, f32>>();
        self.add::<Cast<'_, T, f32>>();
        self.add::<Cast<'_, f32, T>>();
    }

    fn all() -> Self {
        let mut all = Self::default();
        all.storage::<f32>();
        all.storage::<bf16>();
        all.storage::<f16>();
        all.half::<bf16>();
        all.half::<f16>();
        all.add::<FoldParts<'_>>();
        all.add::<SumLoss<'_>>();
        all.add::<GemmSimt<'_>>();
        all.add::<GradSums<'_>>();
        all.add::<SpanSums<'_>>();
        all.add::<SpanClip<'_>>();
        all.add::<Decide<'_>>();
        all.add::<Count<'_>>();
        all.add::<Starts<'_>>();
        all.add::<Sort<'_>>();
        all.add::<Runs<'_>>();
        all.add::<Fold<'_>>();
        all
    }
}

/// Name and parameters of a demangled signature, without template arguments.
fn call(signature: &str) -> Call {
    let signature = signature.strip_prefix("void ").unwrap_or(signature);
    let (head, arguments) = signature.split_once('(').unwrap();
    let name = head.split('<').next().unwrap();
    (name.to_owned(), arguments.strip_suffix(')').unwrap().to_owned())
}

fn demangled(symbol: &str) -> String {
    cpp_demangle::Symbol::new(symbol).unwrap().demangle().unwrap()
}

#[test]
fn every_entry_has_a_launcher_and_every_launcher_an_entry() {
    let launchers = Launchers::all().0;
    let mut entries = BTreeSet::new();
    for module in MODULES {
        let symbols = module.ptx.lines().filter_map(|l| l.split(".entry ").nth(1));
        let found: Vec<&str> = symbols.map(|l| l.trim_end_matches('(').trim()).collect();
        let listed: Vec<&str> = module.entries.iter().map(|&(_, symbol)| symbol).collect();
        assert_eq!(found, listed, "the index is not of this PTX: run `cargo xtask ptx`");
        for &(signature, symbol) in module.entries {
            assert_eq!(demangled(symbol), signature);
            let call = call(signature);
            assert!(launchers.contains(&call), "no launcher passes what `{signature}` takes");
            entries.insert(call);
        }
    }
    let orphans: Vec<&Call> = launchers.difference(&entries).collect();
    assert!(orphans.is_empty(), "no PTX entry for {orphans:#?}");
}

#[test]
fn a_changed_parameter_would_be_noticed() {
    let right = call("void add<float>(float const*, float*, long long)");
    assert!(Launchers::all().0.contains(&right));
    for wrong in ["void add<float>(float*, float*, long long)", "void add<float>(float const*, float*, int)"]
    {
        assert!(!Launchers::all().0.contains(&call(wrong)), "{wrong}");
    }
}
