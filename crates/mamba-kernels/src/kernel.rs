//! A kernel's argument list, once: the struct, the parameters and the expected C++ signature come from one field list.

use crate::elem::CppType;
use crate::error::{KernelError, Result};
use crate::registry::Kernels;
use bytemuck::Pod;
use mamba_cuda::{Dims, Params, TensorMap, View, ViewMut};

/// One kernel parameter: its C++ spelling and its bytes.
pub trait Arg {
    /// Type as a demangled signature spells it.
    fn cpp() -> String;
    /// Size of the parameter.
    fn bytes() -> usize;
    /// Adds the parameter to a launch.
    fn push(&self, params: &mut Params);
}

impl<T: CppType> Arg for View<'_, T> {
    fn cpp() -> String {
        format!("{} const*", T::CPP)
    }
    fn bytes() -> usize {
        8
    }
    fn push(&self, params: &mut Params) {
        params.push(&self.ptr().to_ne_bytes());
    }
}

impl<T: CppType> Arg for ViewMut<'_, T> {
    fn cpp() -> String {
        format!("{}*", T::CPP)
    }
    fn bytes() -> usize {
        8
    }
    fn push(&self, params: &mut Params) {
        params.push(&self.ptr().to_ne_bytes());
    }
}

/// An absent pointer is null.
impl<A: Arg> Arg for Option<A> {
    fn cpp() -> String {
        A::cpp()
    }
    fn bytes() -> usize {
        A::bytes()
    }
    fn push(&self, params: &mut Params) {
        match self {
            Some(arg) => arg.push(params),
            None => params.push(&vec![0; A::bytes()]),
        }
    }
}

/// A parameter by value.
#[derive(Debug, Clone, Copy)]
pub struct Val<T>(pub T);

impl<T: CppType + Pod> Arg for Val<T> {
    fn cpp() -> String {
        T::CPP.to_owned()
    }
    fn bytes() -> usize {
        size_of::<T>()
    }
    fn push(&self, params: &mut Params) {
        params.push(bytemuck::bytes_of(&self.0));
    }
}

impl Arg for TensorMap {
    fn cpp() -> String {
        "CUtensorMap_st".to_owned()
    }
    fn bytes() -> usize {
        128
    }
    fn push(&self, params: &mut Params) {
        params.push(&TensorMap::bytes(self));
    }
}

/// A launchable kernel with its arguments. Implemented by [`kernel!`](crate::kernel), completed by [`Launch`].
pub trait Kernel {
    /// Name in error messages.
    const NAME: &'static str;
    /// Demangled parameter list.
    fn arguments() -> String;
    /// Demangled signature of the instantiation that these arguments need.
    fn signature(&self) -> String;
    /// Sizes of the parameters, in order.
    fn parameter_bytes() -> Vec<usize>;
    /// The parameters.
    fn params(&self) -> Params;
}

/// What a launcher decides: whether the arguments fit, and the shape of the launch.
pub trait Launch: Kernel + Sized {
    /// Lengths, alignment, ranges.
    ///
    /// # Errors
    /// [`KernelError::Length`], [`KernelError::Size`].
    fn check(&self) -> Result<()>;
    /// Blocks, threads, shared memory; depends on shapes only.
    fn dims(&self) -> Dims;
    /// Dynamic shared memory that the kernel may ask for; the same for all launches of one instantiation.
    fn max_shared(&self) -> usize {
        self.dims().shared as usize
    }

    /// Checks and starts the kernel on the compute stream.
    ///
    /// # Errors
    /// Those of [`Launch::check`], [`KernelError::Missing`], those of the driver.
    fn launch(self, kernels: &Kernels) -> Result<()> {
        self.check()?;
        kernels.start(&self)
    }
}

/// Checks that a buffer holds what the problem needs.
///
/// # Errors
/// [`KernelError::Length`].
pub fn need(kernel: &'static str, argument: &'static str, got: usize, need: usize) -> Result<()> {
    match got >= need {
        true => Ok(()),
        false => Err(KernelError::Length { kernel, argument, got, need }),
    }
}

/// Checks that a size is in range.
///
/// # Errors
/// [`KernelError::Size`].
pub fn ensure(
    ok: bool,
    kernel: &'static str,
    argument: &'static str,
    got: usize,
    expected: &'static str,
) -> Result<()> {
    match ok {
        true => Ok(()),
        false => Err(KernelError::Size { kernel, argument, got: got as u64, expected }),
    }
}

/// Declares a kernel's argument struct.
///
/// `kernel! { /// docs
/// pub struct Name['a, T: Elem] = "kernel_name", |this| "template arguments with <>, or empty"; { fields } }`
///
/// Fields are [`View`](mamba_cuda::View) (a `const` pointer), [`ViewMut`](mamba_cuda::ViewMut), `Option` of these
/// (may be null), [`Val`](crate::Val) (by value) or [`TensorMap`](mamba_cuda::TensorMap); their order is the kernel's. Further
/// fields after `host:` are known to the launcher only.
#[macro_export]
macro_rules! kernel {
    ($(#[$meta:meta])* pub struct $name:ident[$lt:lifetime $(, $t:ident: $bound:path)*] = $symbol:literal,
     |$this:ident| $template:expr; { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }
     $(host: { $($(#[$hmeta:meta])* $host:ident: $hty:ty,)* })?) => {
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name<$lt $(, $t: $bound)*> {
            $($(#[$fmeta])* pub $field: $ty,)*
            $($($(#[$hmeta])* pub $host: $hty,)*)?
            /// Ties the argument types to the struct.
            pub marker: std::marker::PhantomData<&$lt ($($t,)*)>,
        }
        impl<$lt $(, $t: $bound)*> $crate::Kernel for $name<$lt $(, $t)*> {
            const NAME: &'static str = $symbol;
            fn signature(&self) -> String {
                let $this = self;
                let template: String = $template.into();
                let returns = if template.is_empty() { "" } else { "void " };
                format!("{returns}{}{template}({})", $symbol, <Self as $crate::Kernel>::arguments())
            }
            fn arguments() -> String {
                let arguments: Vec<String> = vec![$(<$ty as $crate::Arg>::cpp()),*];
                arguments.join(", ")
            }
            fn parameter_bytes() -> Vec<usize> {
                vec![$(<$ty as $crate::Arg>::bytes()),*]
            }
            fn params(&self) -> mamba_cuda::Params {
                let mut params = mamba_cuda::Params::default();
                $($crate::Arg::push(&self.$field, &mut params);)*
                params
            }
        }
    };
}
