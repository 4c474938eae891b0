// Made by `cargo xtask ptx`.

use crate::registry::PtxModule;

/// Every PTX module of this crate.
#[rustfmt::skip]
pub(crate) const MODULES: &[PtxModule] = &[
    PtxModule {
        target: "80",
        ptx: include_str!("../ptx/embedding_embedding.sm80.ptx"),
        entries: &[
            ("embedding_count(unsigned int const*, int*, int)", "_Z15embedding_countPKjPii"),
            ("embedding_starts(int*, int)", "_Z16embedding_startsPii"),
            ("embedding_sort(unsigned int const*, int const*, int*, int)", "_Z14embedding_sortPKjPKiPii"),
            ("embedding_runs(unsigned int const*, int const*, float const*, float*, float*, int, long long)", "_Z14embedding_runsPKjPKiPKfPfS5_ix"),
            ("embedding_fold(unsigned int const*, int const*, float const*, float*, int, long long)", "_Z14embedding_foldPKjPKiPKfPfix"),
            ("void embedding_forward<float>(float const*, unsigned int const*, float*, long long)", "_Z17embedding_forwardIfEvPKT_PKjPfx"),
            ("void embedding_forward<__nv_bfloat16>(__nv_bfloat16 const*, unsigned int const*, float*, long long)", "_Z17embedding_forwardI13__nv_bfloat16EvPKT_PKjPfx"),
            ("void embedding_forward<__half>(__half const*, unsigned int const*, float*, long long)", "_Z17embedding_forwardI6__halfEvPKT_PKjPfx"),
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
];
