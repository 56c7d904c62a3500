/* Compiles one function body for several instruction sets. A body uses only integer arithmetic and correctly
 * rounded floating-point operations, so all versions give the same bits and differ only in speed.
 *
 *     MF_VECTOR_BODY(void, scale_all, (float *x, size_t n), (x, n), { for (…) … })
 *
 * defines scale_all(), which calls the version for the instruction set that mf_isa_best() returns. */
#pragma once

#include "kernels/core/isa.h"

#define MF_VECTOR_INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__)
#    define MF_TARGET_AVX2 __attribute__((target("avx2")))
#    ifdef __clang__ /* clang does not accept prefer-vector-width in the attribute */
#        define MF_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#    else
#        define MF_TARGET_AVX512 \
            __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#    endif
#else
#    define MF_TARGET_AVX2
#    define MF_TARGET_AVX512
#endif

#define MF_VECTOR_BODY(linkage, type, name, parameters, arguments, ...) \
    MF_VECTOR_INLINE type name##_body parameters __VA_ARGS__            \
        MF_TARGET_AVX512 static type name##_avx512 parameters           \
    {                                                                   \
        return name##_body arguments;                                   \
    }                                                                   \
    MF_TARGET_AVX2 static type name##_avx2 parameters                   \
    {                                                                   \
        return name##_body arguments;                                   \
    }                                                                   \
    static type name##_c parameters                                     \
    {                                                                   \
        return name##_body arguments;                                   \
    }                                                                   \
    linkage type name parameters                                        \
    {                                                                   \
        switch (mf_isa_best()) {                                        \
        case MF_ISA_AVX512:                                             \
            return name##_avx512 arguments;                             \
        case MF_ISA_AVX2:                                               \
            return name##_avx2 arguments;                               \
        case MF_ISA_C:                                                  \
            break;                                                      \
        }                                                               \
        return name##_c arguments;                                      \
    }
