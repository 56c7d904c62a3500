/* Instruction sets of the CPU kernels.
 *
 * The environment variable MOEFARM_ISA ("c", "avx2", "avx512") selects a lower instruction set than the best
 * one of the machine, for tests. */
#pragma once

/* In ascending order of speed. */
enum mf_isa { MF_ISA_C, MF_ISA_AVX2, MF_ISA_AVX512 /* AVX-512 with BF16 and VNNI */ };

enum mf_isa mf_isa_best(void);
/* Returns "c", "avx2" or "avx512_bf16+vnni". */
const char *mf_isa_name(enum mf_isa isa);
/* Reads MOEFARM_ISA again. Called whenever a device is opened. */
void mf_isa_refresh(void);
