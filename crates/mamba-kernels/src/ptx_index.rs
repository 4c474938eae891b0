// Made by `cargo xtask ptx`.

use crate::registry::PtxModule;

/// Every PTX module of this crate.
#[rustfmt::skip]
pub(crate) static MODULES: &[PtxModule] = &[
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/conv_causal_conv1d.f32_4.sm80.ptx"),
        entries: &[
            ("void conv_forward<float, 4, 4>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi4ELi4EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 4, 2>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi4ELi2EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 4, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi4ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 4, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi4ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/conv_causal_conv1d.bf16_4.sm80.ptx"),
        entries: &[
            ("void conv_forward<__nv_bfloat16, 4, 4>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li4ELi4EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 4, 4>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li4ELi4EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 4, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li4ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 4, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li4ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/conv_causal_conv1d.f16_4.sm80.ptx"),
        entries: &[
            ("void conv_forward<__half, 4, 4>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi4ELi4EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 4, 4>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi4ELi4EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 4, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi4ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 4, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi4ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/conv_causal_conv1d.f32.sm80.ptx"),
        entries: &[
            ("void conv_forward<float, 2, 4>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi2ELi4EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 2, 2>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi2ELi2EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 3, 4>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi3ELi4EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 3, 2>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi3ELi2EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 1, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi1ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 1, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi1ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 2, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi2ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 2, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi2ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 3, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi3ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 3, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi3ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 5, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi5ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 5, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi5ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 6, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi6ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 6, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi6ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 7, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi7ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 7, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi7ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
            ("void conv_forward<float, 8, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, ConvArgs)", "_Z12conv_forwardIfLi8ELi1EEvPKT_PKfS4_PKhS4_PS0_Pf8ConvArgs"),
            ("void conv_backward<float, 8, 1>(float const*, float const*, float const*, unsigned char const*, float const*, float const*, float const*, float*, float*, ConvArgs)", "_Z13conv_backwardIfLi8ELi1EEvPKT_PKfS4_PKhS4_S2_S2_PS0_Pf8ConvArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/conv_causal_conv1d.bf16.sm80.ptx"),
        entries: &[
            ("void conv_forward<__nv_bfloat16, 2, 4>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li2ELi4EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 2, 4>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li2ELi4EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 3, 4>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li3ELi4EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 3, 4>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li3ELi4EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 1, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li1ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 1, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li1ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 2, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li2ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 2, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li2ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 3, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li3ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 3, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li3ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 5, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li5ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 5, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li5ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 6, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li6ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 6, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li6ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 7, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li7ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 7, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li7ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__nv_bfloat16, 8, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, ConvArgs)", "_Z12conv_forwardI13__nv_bfloat16Li8ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__nv_bfloat16, 8, 1>(__nv_bfloat16 const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, float*, ConvArgs)", "_Z13conv_backwardI13__nv_bfloat16Li8ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/conv_causal_conv1d.f16.sm80.ptx"),
        entries: &[
            ("void conv_forward<__half, 2, 4>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi2ELi4EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 2, 4>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi2ELi4EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 3, 4>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi3ELi4EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 3, 4>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi3ELi4EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 1, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi1ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 1, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi1ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 2, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi2ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 2, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi2ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 3, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi3ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 3, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi3ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 5, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi5ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 5, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi5ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 6, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi6ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 6, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi6ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 7, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi7ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 7, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi7ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
            ("void conv_forward<__half, 8, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, ConvArgs)", "_Z12conv_forwardI6__halfLi8ELi1EEvPKT_PKfS5_PKhS5_PS1_Pf8ConvArgs"),
            ("void conv_backward<__half, 8, 1>(__half const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half const*, __half*, float*, ConvArgs)", "_Z13conv_backwardI6__halfLi8ELi1EEvPKT_PKfS5_PKhS5_S3_S3_PS1_Pf8ConvArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/elementwise_elementwise.sm80.ptx"),
        entries: &[
            ("void cast<float, __nv_bfloat16>(float const*, __nv_bfloat16*, long long)", "_Z4castIf13__nv_bfloat16EvPKT_PT0_x"),
            ("void cast<float, __half>(float const*, __half*, long long)", "_Z4castIf6__halfEvPKT_PT0_x"),
            ("void cast<__nv_bfloat16, float>(__nv_bfloat16 const*, float*, long long)", "_Z4castI13__nv_bfloat16fEvPKT_PT0_x"),
            ("void cast<__half, float>(__half const*, float*, long long)", "_Z4castI6__halffEvPKT_PT0_x"),
            ("void add<float>(float const*, float*, long long)", "_Z3addIfEvPKT_PS0_x"),
            ("void scale<float>(float const*, float const*, float*, int, long long)", "_Z5scaleIfEvPKT_PKfPfix"),
            ("void fill<float>(float*, float, long long)", "_Z4fillIfEvPT_fx"),
            ("void add_bias<float>(float*, float const*, long long, int, long long)", "_Z8add_biasIfEvPT_PKfxix"),
            ("void column_sums<float>(float const*, float*, long long, int, long long, long long)", "_Z11column_sumsIfEvPKT_Pfxixx"),
            ("void add<__nv_bfloat16>(__nv_bfloat16 const*, __nv_bfloat16*, long long)", "_Z3addI13__nv_bfloat16EvPKT_PS1_x"),
            ("void scale<__nv_bfloat16>(__nv_bfloat16 const*, float const*, float*, int, long long)", "_Z5scaleI13__nv_bfloat16EvPKT_PKfPfix"),
            ("void fill<__nv_bfloat16>(__nv_bfloat16*, float, long long)", "_Z4fillI13__nv_bfloat16EvPT_fx"),
            ("void add_bias<__nv_bfloat16>(__nv_bfloat16*, float const*, long long, int, long long)", "_Z8add_biasI13__nv_bfloat16EvPT_PKfxix"),
            ("void column_sums<__nv_bfloat16>(__nv_bfloat16 const*, float*, long long, int, long long, long long)", "_Z11column_sumsI13__nv_bfloat16EvPKT_Pfxixx"),
            ("void add<__half>(__half const*, __half*, long long)", "_Z3addI6__halfEvPKT_PS1_x"),
            ("void scale<__half>(__half const*, float const*, float*, int, long long)", "_Z5scaleI6__halfEvPKT_PKfPfix"),
            ("void fill<__half>(__half*, float, long long)", "_Z4fillI6__halfEvPT_fx"),
            ("void add_bias<__half>(__half*, float const*, long long, int, long long)", "_Z8add_biasI6__halfEvPT_PKfxix"),
            ("void column_sums<__half>(__half const*, float*, long long, int, long long, long long)", "_Z11column_sumsI6__halfEvPKT_Pfxixx"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/embedding_embedding.sm80.ptx"),
        entries: &[
            ("embedding_count(unsigned int const*, int*, int)", "_Z15embedding_countPKjPii"),
            ("embedding_starts(int*, int)", "_Z16embedding_startsPii"),
            ("embedding_ranks(unsigned int const*, int*, int)", "_Z15embedding_ranksPKjPii"),
            ("embedding_place(unsigned int const*, int const*, int const*, int*, int)", "_Z15embedding_placePKjPKiS2_Pii"),
            ("embedding_runs(unsigned int const*, int const*, float const*, float*, float*, int, long long)", "_Z14embedding_runsPKjPKiPKfPfS5_ix"),
            ("embedding_fold(unsigned int const*, int const*, float const*, float*, int, long long)", "_Z14embedding_foldPKjPKiPKfPfix"),
            ("void embedding_forward<float>(float const*, unsigned int const*, float*, long long, int)", "_Z17embedding_forwardIfEvPKT_PKjPfxi"),
            ("void embedding_forward<__nv_bfloat16>(__nv_bfloat16 const*, unsigned int const*, float*, long long, int)", "_Z17embedding_forwardI13__nv_bfloat16EvPKT_PKjPfxi"),
            ("void embedding_forward<__half>(__half const*, unsigned int const*, float*, long long, int)", "_Z17embedding_forwardI6__halfEvPKT_PKjPfxi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/fold_parts.sm80.ptx"),
        entries: &[
            ("fold_parts(float const*, float*, FoldJobs)", "_Z10fold_partsPKfPf8FoldJobs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.tf32_f32_nn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<float, float, 0, 1, true>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaIffLi0ELi1ELb1EEvPKT_S2_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<float, float, 0, 1, false>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaIffLi0ELi1ELb0EEvPKT_S2_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.tf32_f32_nt.sm80.ptx"),
        entries: &[
            ("void gemm_mma<float, float, 0, 0, true>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaIffLi0ELi0ELb1EEvPKT_S2_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<float, float, 0, 0, false>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaIffLi0ELi0ELb0EEvPKT_S2_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.tf32_f32_tn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<float, float, 1, 1, true>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaIffLi1ELi1ELb1EEvPKT_S2_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<float, float, 1, 1, false>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaIffLi1ELi1ELb0EEvPKT_S2_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.bf16_bf16_nn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__nv_bfloat16, __nv_bfloat16, 0, 1, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16S0_Li0ELi1ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__nv_bfloat16, __nv_bfloat16, 0, 1, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16S0_Li0ELi1ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.bf16_f32_nn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__nv_bfloat16, float, 0, 1, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16fLi0ELi1ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__nv_bfloat16, float, 0, 1, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16fLi0ELi1ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.bf16_bf16_nt.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__nv_bfloat16, __nv_bfloat16, 0, 0, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16S0_Li0ELi0ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__nv_bfloat16, __nv_bfloat16, 0, 0, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16S0_Li0ELi0ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.bf16_f32_nt.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__nv_bfloat16, float, 0, 0, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16fLi0ELi0ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__nv_bfloat16, float, 0, 0, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16fLi0ELi0ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.bf16_f32_tn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__nv_bfloat16, float, 1, 1, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16fLi1ELi1ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__nv_bfloat16, float, 1, 1, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI13__nv_bfloat16fLi1ELi1ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.f16_f16_nn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__half, __half, 0, 1, true>(__half const*, __half const*, float const*, __half*, int*, GemmArgs)", "_Z8gemm_mmaI6__halfS0_Li0ELi1ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__half, __half, 0, 1, false>(__half const*, __half const*, float const*, __half*, int*, GemmArgs)", "_Z8gemm_mmaI6__halfS0_Li0ELi1ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.f16_f32_nn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__half, float, 0, 1, true>(__half const*, __half const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI6__halffLi0ELi1ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__half, float, 0, 1, false>(__half const*, __half const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI6__halffLi0ELi1ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.f16_f16_nt.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__half, __half, 0, 0, true>(__half const*, __half const*, float const*, __half*, int*, GemmArgs)", "_Z8gemm_mmaI6__halfS0_Li0ELi0ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__half, __half, 0, 0, false>(__half const*, __half const*, float const*, __half*, int*, GemmArgs)", "_Z8gemm_mmaI6__halfS0_Li0ELi0ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.f16_f32_nt.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__half, float, 0, 0, true>(__half const*, __half const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI6__halffLi0ELi0ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__half, float, 0, 0, false>(__half const*, __half const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI6__halffLi0ELi0ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_mma.f16_f32_tn.sm80.ptx"),
        entries: &[
            ("void gemm_mma<__half, float, 1, 1, true>(__half const*, __half const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI6__halffLi1ELi1ELb1EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
            ("void gemm_mma<__half, float, 1, 1, false>(__half const*, __half const*, float const*, float*, int*, GemmArgs)", "_Z8gemm_mmaI6__halffLi1ELi1ELb0EEvPKT_S3_PKfPT0_Pi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_simt.sm80.ptx"),
        entries: &[
            ("void gemm_simt<0, 1, true>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z9gemm_simtILi0ELi1ELb1EEvPKfS1_S1_PfPi8GemmArgs"),
            ("void gemm_simt<0, 1, false>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z9gemm_simtILi0ELi1ELb0EEvPKfS1_S1_PfPi8GemmArgs"),
            ("void gemm_simt<0, 0, true>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z9gemm_simtILi0ELi0ELb1EEvPKfS1_S1_PfPi8GemmArgs"),
            ("void gemm_simt<0, 0, false>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z9gemm_simtILi0ELi0ELb0EEvPKfS1_S1_PfPi8GemmArgs"),
            ("void gemm_simt<1, 1, true>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z9gemm_simtILi1ELi1ELb1EEvPKfS1_S1_PfPi8GemmArgs"),
            ("void gemm_simt<1, 1, false>(float const*, float const*, float const*, float*, int*, GemmArgs)", "_Z9gemm_simtILi1ELi1ELb0EEvPKfS1_S1_PfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_thin.f32_1.sm80.ptx"),
        entries: &[
            ("void gemm_thin_nn<float, 1, true>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_nnIfLi1ELb1EEvPKT_S2_PKfPS0_8GemmArgs"),
            ("void gemm_thin_nn<float, 1, false>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_nnIfLi1ELb0EEvPKT_S2_PKfPS0_8GemmArgs"),
            ("void gemm_thin_nt<float, 1, true>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntIfLi1ELb1EEvPKT_S2_PKfPf8GemmArgs"),
            ("void gemm_thin_nt<float, 1, false>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntIfLi1ELb0EEvPKT_S2_PKfPf8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_thin.f32_8.sm80.ptx"),
        entries: &[
            ("void gemm_thin_nn<float, 8, true>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_nnIfLi8ELb1EEvPKT_S2_PKfPS0_8GemmArgs"),
            ("void gemm_thin_nn<float, 8, false>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_nnIfLi8ELb0EEvPKT_S2_PKfPS0_8GemmArgs"),
            ("void gemm_thin_nt<float, 8, true>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntIfLi8ELb1EEvPKT_S2_PKfPf8GemmArgs"),
            ("void gemm_thin_nt<float, 8, false>(float const*, float const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntIfLi8ELb0EEvPKT_S2_PKfPf8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_thin.bf16_1.sm80.ptx"),
        entries: &[
            ("void gemm_thin_nn<__nv_bfloat16, 1, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, GemmArgs)", "_Z12gemm_thin_nnI13__nv_bfloat16Li1ELb1EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nn<__nv_bfloat16, 1, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, GemmArgs)", "_Z12gemm_thin_nnI13__nv_bfloat16Li1ELb0EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nt<__nv_bfloat16, 1, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI13__nv_bfloat16Li1ELb1EEvPKT_S3_PKfPf8GemmArgs"),
            ("void gemm_thin_nt<__nv_bfloat16, 1, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI13__nv_bfloat16Li1ELb0EEvPKT_S3_PKfPf8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_thin.bf16_8.sm80.ptx"),
        entries: &[
            ("void gemm_thin_nn<__nv_bfloat16, 8, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, GemmArgs)", "_Z12gemm_thin_nnI13__nv_bfloat16Li8ELb1EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nn<__nv_bfloat16, 8, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, __nv_bfloat16*, GemmArgs)", "_Z12gemm_thin_nnI13__nv_bfloat16Li8ELb0EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nt<__nv_bfloat16, 8, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI13__nv_bfloat16Li8ELb1EEvPKT_S3_PKfPf8GemmArgs"),
            ("void gemm_thin_nt<__nv_bfloat16, 8, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI13__nv_bfloat16Li8ELb0EEvPKT_S3_PKfPf8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_thin.f16_1.sm80.ptx"),
        entries: &[
            ("void gemm_thin_nn<__half, 1, true>(__half const*, __half const*, float const*, __half*, GemmArgs)", "_Z12gemm_thin_nnI6__halfLi1ELb1EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nn<__half, 1, false>(__half const*, __half const*, float const*, __half*, GemmArgs)", "_Z12gemm_thin_nnI6__halfLi1ELb0EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nt<__half, 1, true>(__half const*, __half const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI6__halfLi1ELb1EEvPKT_S3_PKfPf8GemmArgs"),
            ("void gemm_thin_nt<__half, 1, false>(__half const*, __half const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI6__halfLi1ELb0EEvPKT_S3_PKfPf8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/gemm_thin.f16_8.sm80.ptx"),
        entries: &[
            ("void gemm_thin_nn<__half, 8, true>(__half const*, __half const*, float const*, __half*, GemmArgs)", "_Z12gemm_thin_nnI6__halfLi8ELb1EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nn<__half, 8, false>(__half const*, __half const*, float const*, __half*, GemmArgs)", "_Z12gemm_thin_nnI6__halfLi8ELb0EEvPKT_S3_PKfPS1_8GemmArgs"),
            ("void gemm_thin_nt<__half, 8, true>(__half const*, __half const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI6__halfLi8ELb1EEvPKT_S3_PKfPf8GemmArgs"),
            ("void gemm_thin_nt<__half, 8, false>(__half const*, __half const*, float const*, float*, GemmArgs)", "_Z12gemm_thin_ntI6__halfLi8ELb0EEvPKT_S3_PKfPf8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nn_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __nv_bfloat16, __nv_bfloat16, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E13__nv_bfloat16S0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nn_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __nv_bfloat16, __nv_bfloat16, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E13__nv_bfloat16S0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nn_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __nv_bfloat16, __nv_bfloat16, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E13__nv_bfloat16S0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nn_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __nv_bfloat16, __nv_bfloat16, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E13__nv_bfloat16S0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nn_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __nv_bfloat16, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E13__nv_bfloat16fLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nn_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __nv_bfloat16, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E13__nv_bfloat16fLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nn_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __nv_bfloat16, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E13__nv_bfloat16fLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nn_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __nv_bfloat16, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E13__nv_bfloat16fLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nt_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __nv_bfloat16, __nv_bfloat16, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E13__nv_bfloat16S0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nt_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __nv_bfloat16, __nv_bfloat16, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E13__nv_bfloat16S0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nt_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __nv_bfloat16, __nv_bfloat16, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E13__nv_bfloat16S0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_bf16_nt_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __nv_bfloat16, __nv_bfloat16, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E13__nv_bfloat16S0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nt_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __nv_bfloat16, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E13__nv_bfloat16fLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nt_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __nv_bfloat16, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E13__nv_bfloat16fLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nt_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __nv_bfloat16, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E13__nv_bfloat16fLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_nt_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __nv_bfloat16, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E13__nv_bfloat16fLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_tn_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __nv_bfloat16, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E13__nv_bfloat16fLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_tn_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __nv_bfloat16, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E13__nv_bfloat16fLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_tn_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __nv_bfloat16, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E13__nv_bfloat16fLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.bf16_f32_tn_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __nv_bfloat16, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E13__nv_bfloat16fLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nn_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __half, __half, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E6__halfS0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nn_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __half, __half, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E6__halfS0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nn_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __half, __half, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E6__halfS0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nn_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __half, __half, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E6__halfS0_Li0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nn_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __half, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E6__halffLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nn_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __half, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E6__halffLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nn_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __half, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E6__halffLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nn_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __half, float, 0, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E6__halffLi0ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nt_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __half, __half, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E6__halfS0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nt_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __half, __half, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E6__halfS0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nt_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __half, __half, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E6__halfS0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f16_nt_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __half, __half, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E6__halfS0_Li0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nt_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __half, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E6__halffLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nt_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __half, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E6__halffLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nt_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __half, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E6__halffLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_nt_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __half, float, 0, 0>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E6__halffLi0ELi0EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_tn_96.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<96, __half, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi96E6__halffLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_tn_128.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<128, __half, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi128E6__halffLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_tn_192.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<192, __half, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi192E6__halffLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "90a",
        ptx: include_str!("../ptx/gemm_wgmma.f16_f32_tn_256.sm90a.ptx"),
        entries: &[
            ("void gemm_wgmma<256, __half, float, 1, 1>(CUtensorMap_st, CUtensorMap_st, CUtensorMap_st, float const*, int*, GemmArgs)", "_Z10gemm_wgmmaILi256E6__halffLi1ELi1EEv14CUtensorMap_stS1_S1_PKfPi8GemmArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/loss_cross_entropy.sm80.ptx"),
        entries: &[
            ("loss_totals(float const*, int const*, float const*, LossTotals*, long long)", "_Z11loss_totalsPKfPKiS0_P10LossTotalsx"),
            ("void cross_entropy<float, true>(float const*, int const*, float const*, float const*, float*, float*, long long)", "_Z13cross_entropyIfLb1EEvPKfPKiS1_S1_PfPT_x"),
            ("void cross_entropy<float, false>(float const*, int const*, float const*, float const*, float*, float*, long long)", "_Z13cross_entropyIfLb0EEvPKfPKiS1_S1_PfPT_x"),
            ("void cross_entropy<__nv_bfloat16, true>(float const*, int const*, float const*, float const*, float*, __nv_bfloat16*, long long)", "_Z13cross_entropyI13__nv_bfloat16Lb1EEvPKfPKiS2_S2_PfPT_x"),
            ("void cross_entropy<__nv_bfloat16, false>(float const*, int const*, float const*, float const*, float*, __nv_bfloat16*, long long)", "_Z13cross_entropyI13__nv_bfloat16Lb0EEvPKfPKiS2_S2_PfPT_x"),
            ("void cross_entropy<__half, true>(float const*, int const*, float const*, float const*, float*, __half*, long long)", "_Z13cross_entropyI6__halfLb1EEvPKfPKiS2_S2_PfPT_x"),
            ("void cross_entropy<__half, false>(float const*, int const*, float const*, float const*, float*, __half*, long long)", "_Z13cross_entropyI6__halfLb0EEvPKfPKiS2_S2_PfPT_x"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/loss_staged.sm80.ptx"),
        entries: &[
            ("void cross_entropy_staged<float>(float const*, int const*, float const*, float const*, float*, float*, long long, long long)", "_Z20cross_entropy_stagedIfEvPKfPKiS1_S1_PfPT_xx"),
            ("void cross_entropy_staged<__nv_bfloat16>(float const*, int const*, float const*, float const*, float*, __nv_bfloat16*, long long, long long)", "_Z20cross_entropy_stagedI13__nv_bfloat16EvPKfPKiS2_S2_PfPT_xx"),
            ("void cross_entropy_staged<__half>(float const*, int const*, float const*, float const*, float*, __half*, long long, long long)", "_Z20cross_entropy_stagedI6__halfEvPKfPKiS2_S2_PfPT_xx"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.f32_narrow.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<float, float, 2, 1, true>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi2ELi1ELb1EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 2, 1, true>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi2ELi1ELb1EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
            ("void rms_norm_forward<float, float, 3, 1, true>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi3ELi1ELb1EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 3, 1, true>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi3ELi1ELb1EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
            ("void rms_norm_forward<float, float, 6, 1, true>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi6ELi1ELb1EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 6, 1, true>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi6ELi1ELb1EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.f32_wide.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<float, float, 2, 4, true>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi2ELi4ELb1EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 2, 4, true>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi2ELi4ELb1EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
            ("void rms_norm_forward<float, float, 4, 4, true>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi4ELi4ELb1EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 4, 4, true>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi4ELi4ELb1EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
            ("void rms_norm_forward<float, float, 4, 16, true>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi4ELi16ELb1EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 4, 16, true>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi4ELi16ELb1EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
            ("void rms_norm_forward<float, float, 2, 4, false>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi2ELi4ELb0EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 2, 4, false>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi2ELi4ELb0EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
            ("void rms_norm_forward<float, float, 4, 16, false>(float const*, float const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardIffLi4ELi16ELb0EEvPKfPKT_S1_PfPT0_S5_fxi"),
            ("void rms_norm_backward<float, float, 4, 16, false>(float const*, float const*, float const*, float const*, float*, float*, float*, int, long long, int)", "_Z17rms_norm_backwardIffLi4ELi16ELb0EEvPKfS1_S1_PKT0_PfPT_S5_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.bf16_narrow.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 2, 1, true>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li2ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 2, 1, true>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li2ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 3, 1, true>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li3ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 3, 1, true>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li3ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 6, 1, true>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li6ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 6, 1, true>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li6ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.bf16_wide.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 2, 4, true>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li2ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 2, 4, true>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li2ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 4, 4, true>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li4ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 4, 4, true>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li4ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 4, 16, true>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li4ELi16ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 4, 16, true>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li4ELi16ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 2, 4, false>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li2ELi4ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 2, 4, false>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li2ELi4ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, __nv_bfloat16, 4, 16, false>(float const*, __nv_bfloat16 const*, float const*, float*, __nv_bfloat16*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16S0_Li4ELi16ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, __nv_bfloat16, 4, 16, false>(float const*, float const*, float const*, __nv_bfloat16 const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16S0_Li4ELi16ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.f16_narrow.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__half, __half, 2, 1, true>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li2ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 2, 1, true>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li2ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, __half, 3, 1, true>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li3ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 3, 1, true>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li3ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, __half, 6, 1, true>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li6ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 6, 1, true>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li6ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.f16_wide.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__half, __half, 2, 4, true>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li2ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 2, 4, true>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li2ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, __half, 4, 4, true>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li4ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 4, 4, true>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li4ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, __half, 4, 16, true>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li4ELi16ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 4, 16, true>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li4ELi16ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, __half, 2, 4, false>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li2ELi4ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 2, 4, false>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li2ELi4ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, __half, 4, 16, false>(float const*, __half const*, float const*, float*, __half*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halfS0_Li4ELi16ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, __half, 4, 16, false>(float const*, float const*, float const*, __half const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halfS0_Li4ELi16ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.bf16_f32_narrow.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__nv_bfloat16, float, 2, 1, true>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi2ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 2, 1, true>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi2ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, float, 3, 1, true>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi3ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 3, 1, true>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi3ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, float, 6, 1, true>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi6ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 6, 1, true>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi6ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.bf16_f32_wide.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__nv_bfloat16, float, 2, 4, true>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi2ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 2, 4, true>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi2ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, float, 4, 4, true>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi4ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 4, 4, true>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi4ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, float, 4, 16, true>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi4ELi16ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 4, 16, true>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi4ELi16ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, float, 2, 4, false>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi2ELi4ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 2, 4, false>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi2ELi4ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__nv_bfloat16, float, 4, 16, false>(float const*, __nv_bfloat16 const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI13__nv_bfloat16fLi4ELi16ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__nv_bfloat16, float, 4, 16, false>(float const*, float const*, float const*, float const*, float*, __nv_bfloat16*, float*, int, long long, int)", "_Z17rms_norm_backwardI13__nv_bfloat16fLi4ELi16ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.f16_f32_narrow.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__half, float, 2, 1, true>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi2ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 2, 1, true>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi2ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, float, 3, 1, true>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi3ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 3, 1, true>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi3ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, float, 6, 1, true>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi6ELi1ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 6, 1, true>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi6ELi1ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/norm_rmsnorm.f16_f32_wide.sm80.ptx"),
        entries: &[
            ("void rms_norm_forward<__half, float, 2, 4, true>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi2ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 2, 4, true>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi2ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, float, 4, 4, true>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi4ELi4ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 4, 4, true>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi4ELi4ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, float, 4, 16, true>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi4ELi16ELb1EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 4, 16, true>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi4ELi16ELb1EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, float, 2, 4, false>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi2ELi4ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 2, 4, false>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi2ELi4ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
            ("void rms_norm_forward<__half, float, 4, 16, false>(float const*, __half const*, float const*, float*, float*, float*, float, long long, int)", "_Z16rms_norm_forwardI6__halffLi4ELi16ELb0EEvPKfPKT_S2_PfPT0_S6_fxi"),
            ("void rms_norm_backward<__half, float, 4, 16, false>(float const*, float const*, float const*, float const*, float*, __half*, float*, int, long long, int)", "_Z17rms_norm_backwardI6__halffLi4ELi16ELb0EEvPKfS2_S2_PKT0_PfPT_S6_ixi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/optim_adamw.sm80.ptx"),
        entries: &[
            ("void adamw<float>(float*, float const*, float*, float*, float*, float*, unsigned int const*, TailInputs const*, TailState const*, long long)", "_Z5adamwIfEvPfPKfS0_S0_PT_S0_PKjPK10TailInputsPK9TailStatex"),
            ("void refresh<float>(float const*, float*, float*, unsigned int const*, long long)", "_Z7refreshIfEvPKfPT_PfPKjx"),
            ("void adamw<__nv_bfloat16>(float*, float const*, float*, float*, __nv_bfloat16*, float*, unsigned int const*, TailInputs const*, TailState const*, long long)", "_Z5adamwI13__nv_bfloat16EvPfPKfS1_S1_PT_S1_PKjPK10TailInputsPK9TailStatex"),
            ("void refresh<__nv_bfloat16>(float const*, __nv_bfloat16*, float*, unsigned int const*, long long)", "_Z7refreshI13__nv_bfloat16EvPKfPT_PfPKjx"),
            ("void adamw<__half>(float*, float const*, float*, float*, __half*, float*, unsigned int const*, TailInputs const*, TailState const*, long long)", "_Z5adamwI6__halfEvPfPKfS1_S1_PT_S1_PKjPK10TailInputsPK9TailStatex"),
            ("void refresh<__half>(float const*, __half*, float*, unsigned int const*, long long)", "_Z7refreshI6__halfEvPKfPT_PfPKjx"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/optim_decide.sm80.ptx"),
        entries: &[
            ("decide(double const*, unsigned int const*, double const*, TailInputs const*, TailState*, double*, float*, long long, unsigned int)", "_Z6decidePKdPKjS0_PK10TailInputsP9TailStatePdPfxj"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/optim_norm.sm80.ptx"),
        entries: &[
            ("grad_sums(float const*, TailInputs const*, TailState const*, double*, unsigned int*, long long)", "_Z9grad_sumsPKfPK10TailInputsPK9TailStatePdPjx"),
            ("span_sums(float const*, SpanPiece const*, TailInputs const*, TailState const*, double*, int)", "_Z9span_sumsPKfPK9SpanPiecePK10TailInputsPK9TailStatePdi"),
            ("span_clip(float*, SpanPiece const*, TailInputs const*, double const*, double*, int)", "_Z9span_clipPfPK9SpanPiecePK10TailInputsPKdPdi"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_backward.f32.sm80.ptx"),
        entries: &[
            ("void scan_backward<float, 4, 4, true>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi4ELi4ELb1EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 4, 4, false>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi4ELi4ELb0EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 8, 4, true>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi8ELi4ELb1EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 8, 4, false>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi8ELi4ELb0EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 16, 4, true>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi16ELi4ELb1EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 16, 4, false>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi16ELi4ELb0EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 32, 4, true>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi32ELi4ELb1EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 32, 4, false>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi32ELi4ELb0EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 32, 8, true>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi32ELi8ELb1EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
            ("void scan_backward<float, 32, 8, false>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float const*, float*, float*, float*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardIfLi32ELi8ELb0EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_S2_PS0_S7_S7_PfS8_S8_S8_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_backward.bf16.sm80.ptx"),
        entries: &[
            ("void scan_backward<__nv_bfloat16, 4, 4, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li4ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 4, 4, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li4ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 8, 4, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li8ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 8, 4, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li8ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 16, 4, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li16ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 16, 4, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li16ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 32, 4, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li32ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 32, 4, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li32ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 32, 8, true>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li32ELi8ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__nv_bfloat16, 32, 8, false>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16 const*, __nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI13__nv_bfloat16Li32ELi8ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_backward.f16.sm80.ptx"),
        entries: &[
            ("void scan_backward<__half, 4, 4, true>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi4ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 4, 4, false>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi4ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 8, 4, true>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi8ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 8, 4, false>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi8ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 16, 4, true>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi16ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 16, 4, false>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi16ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 32, 4, true>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi32ELi4ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 32, 4, false>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi32ELi4ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 32, 8, true>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi32ELi8ELb1EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
            ("void scan_backward<__half, 32, 8, false>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half const*, __half*, __half*, __half*, float*, float*, float*, float*, ScanArgs)", "_Z13scan_backwardI6__halfLi32ELi8ELb0EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_S3_PS1_S8_S8_PfS9_S9_S9_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_fold.sm80.ptx"),
        entries: &[
            ("scan_segment_entries(float const*, float const*, float const*, float*, long long, long long, long long, long long)", "_Z20scan_segment_entriesPKfS0_S0_Pfxxxx"),
            ("void scan_fold_states<float>(float const*, float*, long long, int, int, int, long long)", "_Z16scan_fold_statesIfEvPKfPT_xiiix"),
            ("void scan_fold_states<__nv_bfloat16>(float const*, __nv_bfloat16*, long long, int, int, int, long long)", "_Z16scan_fold_statesI13__nv_bfloat16EvPKfPT_xiiix"),
            ("void scan_fold_states<__half>(float const*, __half*, long long, int, int, int, long long)", "_Z16scan_fold_statesI6__halfEvPKfPT_xiiix"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_forward.f32.sm80.ptx"),
        entries: &[
            ("void scan_forward<float, 1, 4>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi1ELi4EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
            ("void scan_forward<float, 2, 4>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi2ELi4EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
            ("void scan_forward<float, 4, 4>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi4ELi4EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
            ("void scan_forward<float, 8, 4>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi8ELi4EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
            ("void scan_forward<float, 16, 4>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi16ELi4EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
            ("void scan_forward<float, 32, 4>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi32ELi4EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
            ("void scan_forward<float, 32, 8>(float const*, float const*, float const*, float const*, float const*, float const*, float const*, float const*, unsigned char const*, float const*, float*, float*, float*, ScanArgs)", "_Z12scan_forwardIfLi32ELi8EEvPKT_S2_S2_S2_S2_PKfS4_S4_PKhS4_PS0_PfS8_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_forward.bf16.sm80.ptx"),
        entries: &[
            ("void scan_forward<__nv_bfloat16, 1, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li1ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__nv_bfloat16, 2, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li2ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__nv_bfloat16, 4, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li4ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__nv_bfloat16, 8, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li8ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__nv_bfloat16, 16, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li16ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__nv_bfloat16, 32, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li32ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__nv_bfloat16, 32, 8>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, float const*, unsigned char const*, float const*, __nv_bfloat16*, float*, float*, ScanArgs)", "_Z12scan_forwardI13__nv_bfloat16Li32ELi8EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_forward.f16.sm80.ptx"),
        entries: &[
            ("void scan_forward<__half, 1, 4>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi1ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__half, 2, 4>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi2ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__half, 4, 4>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi4ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__half, 8, 4>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi8ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__half, 16, 4>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi16ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__half, 32, 4>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi32ELi4EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
            ("void scan_forward<__half, 32, 8>(__half const*, __half const*, __half const*, __half const*, __half const*, float const*, float const*, float const*, unsigned char const*, float const*, __half*, float*, float*, ScanArgs)", "_Z12scan_forwardI6__halfLi32ELi8EEvPKT_S3_S3_S3_S3_PKfS5_S5_PKhS5_PS1_PfS9_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_segments.f32.sm80.ptx"),
        entries: &[
            ("void scan_segment_ends<float, 1, 4>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi1ELi4EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
            ("void scan_segment_ends<float, 2, 4>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi2ELi4EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
            ("void scan_segment_ends<float, 4, 4>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi4ELi4EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
            ("void scan_segment_ends<float, 8, 4>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi8ELi4EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
            ("void scan_segment_ends<float, 16, 4>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi16ELi4EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
            ("void scan_segment_ends<float, 32, 4>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi32ELi4EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
            ("void scan_segment_ends<float, 32, 8>(float const*, float const*, float const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsIfLi32ELi8EEvPKT_S2_S2_PKfS4_PKhPfS7_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_segments.bf16.sm80.ptx"),
        entries: &[
            ("void scan_segment_ends<__nv_bfloat16, 1, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li1ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__nv_bfloat16, 2, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li2ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__nv_bfloat16, 4, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li4ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__nv_bfloat16, 8, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li8ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__nv_bfloat16, 16, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li16ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__nv_bfloat16, 32, 4>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li32ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__nv_bfloat16, 32, 8>(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16 const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI13__nv_bfloat16Li32ELi8EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
        ],
    },
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/scan_segments.f16.sm80.ptx"),
        entries: &[
            ("void scan_segment_ends<__half, 1, 4>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi1ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__half, 2, 4>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi2ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__half, 4, 4>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi4ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__half, 8, 4>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi8ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__half, 16, 4>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi16ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__half, 32, 4>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi32ELi4EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
            ("void scan_segment_ends<__half, 32, 8>(__half const*, __half const*, __half const*, float const*, float const*, unsigned char const*, float*, float*, ScanArgs)", "_Z17scan_segment_endsI6__halfLi32ELi8EEvPKT_S3_S3_PKfS5_PKhPfS8_8ScanArgs"),
        ],
    },
];
