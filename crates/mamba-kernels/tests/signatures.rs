//! Launchers and PTX agree: every instantiation that a launcher may ask for is compiled, and nothing else is.

use half::{bf16, f16};
use mamba_kernels::{
    Elem, Kernel, conv, elementwise, embedding, entries, fold, gemm, loss, norm, optim, scan,
};
use std::collections::BTreeSet;

/// Signatures, each once.
#[derive(Default)]
struct Signatures(BTreeSet<String>);

impl Signatures {
    /// The kernel of a launcher without template parameters.
    fn plain<K: Kernel>(&mut self) {
        self.insert(format!("{}({})", K::NAME, K::arguments()));
    }

    /// One instantiation of a launcher's template.
    fn template<K: Kernel>(&mut self, arguments: impl AsRef<str>) {
        self.insert(format!("void {}<{}>({})", K::NAME, arguments.as_ref(), K::arguments()));
    }

    fn insert(&mut self, signature: String) {
        assert!(!self.0.contains(&signature), "listed twice: {signature}");
        self.0.insert(signature);
    }
}

/// What does not depend on a storage type.
fn plain(all: &mut Signatures) {
    all.plain::<embedding::Count<'_>>();
    all.plain::<embedding::Starts<'_>>();
    all.plain::<embedding::Ranks<'_>>();
    all.plain::<embedding::Place<'_>>();
    all.plain::<embedding::Runs<'_>>();
    all.plain::<embedding::Fold<'_>>();
    all.plain::<fold::FoldParts<'_>>();
    all.plain::<scan::SegmentEntries<'_>>();
    all.plain::<loss::SumLoss<'_>>();
    all.plain::<optim::GradSums<'_>>();
    all.plain::<optim::SpanSums<'_>>();
    all.plain::<optim::SpanClip<'_>>();
    all.plain::<optim::Decide<'_>>();
    for layout in ["0, 0", "0, 1", "1, 1"] {
        for aligned in [false, true] {
            all.template::<gemm::GemmSimt<'_>>(format!("{layout}, {aligned}"));
        }
    }
}

/// What exists for each storage type.
fn storage<T: Elem>(all: &mut Signatures) {
    let t = T::CPP;
    all.template::<optim::AdamW<'_, T>>(t);
    all.template::<optim::Refresh<'_, T>>(t);
    all.template::<elementwise::Add<'_, T>>(t);
    all.template::<elementwise::Scale<'_, T>>(t);
    all.template::<elementwise::Fill<'_, T>>(t);
    all.template::<elementwise::AddBias<'_, T>>(t);
    all.template::<elementwise::ColumnSums<'_, T>>(t);
    all.template::<embedding::EmbeddingForward<'_, T>>(t);
    all.template::<scan::FoldStates<'_, T>>(t);
    all.template::<loss::CrossEntropyStaged<'_, T>>(t);
    for rows in [1, 8] {
        for vector in [false, true] {
            all.template::<gemm::GemmThinNn<'_, T>>(format!("{t}, {rows}, {vector}"));
            all.template::<gemm::GemmThinNt<'_, T>>(format!("{t}, {rows}, {vector}"));
        }
    }
    // (lanes, states of a lane)
    let lanes = [(1, 4), (2, 4), (4, 4), (8, 4), (16, 4), (32, 4), (32, 8)];
    for (lanes, states) in lanes {
        all.template::<scan::ScanForward<'_, T>>(format!("{t}, {lanes}, {states}"));
        all.template::<scan::SegmentEnds<'_, T>>(format!("{t}, {lanes}, {states}"));
    }
    for vector in [false, true] {
        all.template::<loss::CrossEntropy<'_, T>>(format!("{t}, {vector}"));
        for (lanes, states) in lanes {
            let arguments = format!("{t}, {lanes}, {states}, {vector}");
            // The backward takes few states as sixteen.
            if lanes >= 4 {
                all.template::<scan::ScanBackward<'_, T>>(&arguments);
            }
        }
    }
    // (width, channels of a thread)
    let wide = if size_of::<T>() == 4 { 2 } else { 4 };
    for width in 1..=8 {
        let channels: &[(usize, usize)] =
            if (2..=4).contains(&width) { &[(1, 1), (4, wide)] } else { &[(1, 1)] };
        for (forward, backward) in channels {
            all.template::<conv::ConvForward<'_, T>>(format!("{t}, {width}, {forward}"));
            all.template::<conv::ConvBackward<'_, T>>(format!("{t}, {width}, {backward}"));
        }
    }
    rms_norm::<T, T>(all);
    products::<T, f32>(all, &["0, 0", "0, 1", "1, 1"]);
}

/// What exists for the half types alone.
fn half<T: Elem>(all: &mut Signatures) {
    let t = T::CPP;
    all.template::<elementwise::Cast<'_, f32, T>>(format!("float, {t}"));
    all.template::<elementwise::Cast<'_, T, f32>>(format!("{t}, float"));
    rms_norm::<T, f32>(all);
    products::<T, T>(all, &["0, 0", "0, 1"]);
    hopper::<T, T>(all, &["0, 0", "0, 1"]);
    hopper::<T, f32>(all, &["0, 0", "0, 1", "1, 1"]);
}

fn rms_norm<T: Elem, O: Elem>(all: &mut Signatures) {
    // (packs of a lane, warps of a row) with whole packs, then without.
    let whole = [(2, 1), (3, 1), (6, 1), (2, 4), (4, 4), (4, 16)].map(|(p, w)| (p, w, true));
    let scalar = [(2, 4), (4, 16)].map(|(p, w)| (p, w, false));
    for (packs, warps, vector) in whole.into_iter().chain(scalar) {
        let arguments = format!("{}, {}, {packs}, {warps}, {vector}", T::CPP, O::CPP);
        all.template::<norm::RmsNormForward<'_, T, O>>(&arguments);
        all.template::<norm::RmsNormBackward<'_, T, O>>(&arguments);
    }
}

fn products<T: Elem, O: Elem>(all: &mut Signatures, layouts: &[&str]) {
    for layout in layouts {
        for aligned in [false, true] {
            let arguments = format!("{}, {}, {layout}, {aligned}", T::CPP, O::CPP);
            all.template::<gemm::GemmMma<'_, T, O>>(arguments);
        }
    }
}

fn hopper<T: Elem, O: Elem>(all: &mut Signatures, layouts: &[&str]) {
    for width in [96, 128, 192, 256] {
        for layout in layouts {
            let arguments = format!("{width}, {}, {}, {layout}", T::CPP, O::CPP);
            all.template::<gemm::GemmWgmma<'_, T, O>>(arguments);
        }
    }
}

#[test]
fn launchers_and_ptx_agree() {
    let mut all = Signatures::default();
    plain(&mut all);
    storage::<f32>(&mut all);
    storage::<bf16>(&mut all);
    storage::<f16>(&mut all);
    half::<bf16>(&mut all);
    half::<f16>(&mut all);
    let compiled: BTreeSet<String> = entries().map(|(signature, ..)| signature.to_owned()).collect();
    let missing: Vec<_> = all.0.difference(&compiled).collect();
    let unused: Vec<_> = compiled.difference(&all.0).collect();
    assert!(missing.is_empty() && unused.is_empty(), "not compiled: {missing:#?}\nnot launched: {unused:#?}");
}

#[test]
fn every_target_is_known() {
    for (signature, symbol, target) in entries() {
        assert!(matches!(target, "80" | "90a"), "{signature}: {target}");
        assert!(symbol.starts_with("_Z"), "{signature}: {symbol}");
    }
}
