//! How Rust types are spelled in a kernel's signature.

use bytemuck::Pod;
use half::{bf16, f16};
use mamba_cuda::{BlasElement, MapElement};

/// A type that kernels take by value or point to.
pub trait CppType: Pod {
    /// Its C++ spelling in a demangled symbol.
    const CPP: &'static str;
}

macro_rules! cpp_types {
    ($($rust:ty => $cpp:literal),* $(,)?) => { $(impl CppType for $rust { const CPP: &'static str = $cpp; })* };
}
cpp_types! {
    f32 => "float", f64 => "double", bf16 => "__nv_bfloat16", f16 => "__half", i32 => "int", u32 => "unsigned int",
    i64 => "long long", u64 => "unsigned long long", u8 => "unsigned char",
}

/// Storage types of activations and weights: the whole of what differs by precision.
pub trait Elem: CppType + BlasElement + std::fmt::Debug + Send + Sync {
    /// Name in messages and module variants.
    const NAME: &'static str;
    /// Type of the bulk tensor copies.
    const MAP: MapElement;
    /// Rounds an f32.
    fn from_f32(x: f32) -> Self;
    /// Widens to f32.
    fn to_f32(self) -> f32;
}

impl Elem for f32 {
    const NAME: &'static str = "f32";
    const MAP: MapElement = MapElement::F32;
    fn from_f32(x: f32) -> Self {
        x
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Elem for bf16 {
    const NAME: &'static str = "bf16";
    const MAP: MapElement = MapElement::Bf16;
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

impl Elem for f16 {
    const NAME: &'static str = "f16";
    const MAP: MapElement = MapElement::F16;
    fn from_f32(x: f32) -> Self {
        f16::from_f32(x)
    }
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
}
