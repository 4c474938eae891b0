use super::engines::{WGMMA_ROWS, tiles};
use super::{Layout, Shape};

/// Arithmetic of products with f32 operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Exact products and sums in f32.
    Exact,
    /// Operands rounded once to TF32, sums in f32.
    Tf32,
}

/// A family of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// CUDA cores.
    Simt,
    /// `mma.sync` tensor cores.
    Mma,
    /// Hopper's warpgroup products.
    Wgmma {
        /// Columns of a tile.
        width: usize,
    },
}

/// How a product runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The kernels.
    pub engine: Engine,
    /// Tiles of C.
    pub tiles: usize,
    /// Parts along k.
    pub splits: usize,
    /// k elements of a part.
    pub k_chunk: usize,
}

/// Blocks that run side by side on the chip that the cuts are made for. A constant: a cut changes the order of a sum,
/// and must not depend on the chip at hand.
const SLOTS: usize = 132;

/// Cost of handing a tile's turn on, in k steps of a 256-wide tile.
const TURN: f64 = 4.0;

/// Picks engine, tile and cut from the problem alone.
pub fn choose(
    shape: &Shape,
    operand_bytes: usize,
    f32_result: bool,
    precision: Precision,
    hopper: bool,
) -> Plan {
    let can_split = shape.layout == Layout::Tn && f32_result;
    if hopper {
        // Relative time of a k step; the 96-wide kernel takes narrow results only.
        let widths: &[(usize, f64)] =
            if shape.n <= 96 { &[(96, 0.45)] } else { &[(256, 1.0), (192, 0.76), (128, 0.56)] };
        let plans = widths.iter().map(|&(width, cost)| {
            let tiles = tiles(shape, WGMMA_ROWS, width);
            cut(shape, Engine::Wgmma { width }, tiles, SLOTS, 64, cost, can_split)
        });
        return best(plans);
    }
    let (engine, slots, step) = match (operand_bytes, precision) {
        (4, Precision::Exact) => (Engine::Simt, 2 * SLOTS, 8),
        (4, Precision::Tf32) => (Engine::Mma, SLOTS, 32),
        _ => (Engine::Mma, 2 * SLOTS, 32),
    };
    best(std::iter::once(cut(shape, engine, tiles(shape, 128, 128), slots, step, 1.0, can_split)))
}

/// The cheapest number of splits for one engine, with its cost.
fn cut(
    shape: &Shape,
    engine: Engine,
    tiles: usize,
    slots: usize,
    step: usize,
    step_cost: f64,
    can_split: bool,
) -> (f64, Plan) {
    let steps = shape.k.div_ceil(step);
    let most = if can_split { (shape.k / 512).clamp(1, 16) } else { 1 };
    let plans = (1..=most).map(|splits| {
        let chunk = steps.div_ceil(splits);
        let splits = steps.div_ceil(chunk);
        let waves = (tiles * splits).div_ceil(slots) as f64;
        // The results of a wave leave the chip while the next one multiplies; about two steps stay visible.
        let cost = waves * (chunk as f64 + 2.0) * step_cost + (splits - 1) as f64 * TURN;
        (cost, Plan { engine, tiles, splits, k_chunk: chunk * step })
    });
    let plain = Plan { engine, tiles, splits: 1, k_chunk: steps * step };
    plans.fold((f64::INFINITY, plain), |a, b| if b.0 < a.0 { b } else { a })
}

fn best(plans: impl Iterator<Item = (f64, Plan)>) -> Plan {
    let none = Plan { engine: Engine::Mma, tiles: 0, splits: 1, k_chunk: 0 };
    plans.fold((f64::INFINITY, none), |a, b| if b.0 < a.0 { b } else { a }).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(layout: Layout, m: usize, n: usize, k: usize) -> Plan {
        choose(&Shape::dense(layout, m, n, k), 2, layout == Layout::Tn, Precision::Exact, true)
    }

    #[test]
    fn forward_sums_stay_whole() {
        for m in [1, 64, 4096, 16_384] {
            assert_eq!(plan(Layout::Nn, m, 768, 1536).splits, 1);
        }
    }

    #[test]
    fn weight_gradients_fill_the_chip() {
        let p = plan(Layout::Tn, 768, 3072, 16_384);
        assert_eq!((p.engine, p.splits), (Engine::Wgmma { width: 192 }, 4));
        let thin = plan(Layout::Tn, 1536, 80, 16_384);
        assert_eq!(thin.engine, Engine::Wgmma { width: 96 });
        assert!((2..=6).contains(&thin.splits), "{thin:?}");
    }

    #[test]
    fn chunks_cover_k() {
        for k in [1, 63, 64, 65, 1000, 16_384, 100_003] {
            for layout in [Layout::Nn, Layout::Nt, Layout::Tn] {
                let p = plan(layout, 100, 200, k);
                assert!(p.k_chunk * p.splits >= k && p.k_chunk * (p.splits - 1) < k, "{k}: {p:?}");
                assert_eq!(p.k_chunk % 64, 0);
            }
        }
    }

    #[test]
    fn f32_takes_the_engine_of_its_precision() {
        let shape = Shape::dense(Layout::Nn, 10, 10, 10);
        assert_eq!(choose(&shape, 4, true, Precision::Exact, false).engine, Engine::Simt);
        assert_eq!(choose(&shape, 4, true, Precision::Tf32, false).engine, Engine::Mma);
    }
}
