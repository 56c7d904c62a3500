/* mf_wgmma<N8>: d = w · x, or d += w · x if `adds` is true. w has 64 weight rows and x has 8·N8 token rows,
 * both in shared memory; one instruction covers 32 bytes of K (dialect_nvidia.h). The instruction names every
 * accumulator register, so each width is written out. It is assembled from pieces that name the registers of
 * sixteen tokens, in the asm text and in the operand list. */
#pragma once

/* Operand numbers in the asm text: the macro HALF is for eight tokens, macro number i for 16·(i + 1) tokens.
 */
#define MF_NUMBERS_HALF "%0, %1, %2, %3"
#define MF_NUMBERS_0    "%0, %1, %2, %3, %4, %5, %6, %7"
#define MF_NUMBERS_1  \
    MF_NUMBERS_0 ", " \
                 "%8, %9, %10, %11, %12, %13, %14, %15"
#define MF_NUMBERS_2  \
    MF_NUMBERS_1 ", " \
                 "%16, %17, %18, %19, %20, %21, %22, %23"
#define MF_NUMBERS_3  \
    MF_NUMBERS_2 ", " \
                 "%24, %25, %26, %27, %28, %29, %30, %31"
#define MF_NUMBERS_4  \
    MF_NUMBERS_3 ", " \
                 "%32, %33, %34, %35, %36, %37, %38, %39"
#define MF_NUMBERS_5  \
    MF_NUMBERS_4 ", " \
                 "%40, %41, %42, %43, %44, %45, %46, %47"
#define MF_NUMBERS_6  \
    MF_NUMBERS_5 ", " \
                 "%48, %49, %50, %51, %52, %53, %54, %55"
#define MF_NUMBERS_7  \
    MF_NUMBERS_6 ", " \
                 "%56, %57, %58, %59, %60, %61, %62, %63"
#define MF_NUMBERS_8  \
    MF_NUMBERS_7 ", " \
                 "%64, %65, %66, %67, %68, %69, %70, %71"
#define MF_NUMBERS_9  \
    MF_NUMBERS_8 ", " \
                 "%72, %73, %74, %75, %76, %77, %78, %79"
#define MF_NUMBERS_10 \
    MF_NUMBERS_9 ", " \
                 "%80, %81, %82, %83, %84, %85, %86, %87"
#define MF_NUMBERS_11  \
    MF_NUMBERS_10 ", " \
                  "%88, %89, %90, %91, %92, %93, %94, %95"
#define MF_NUMBERS_12  \
    MF_NUMBERS_11 ", " \
                  "%96, %97, %98, %99, %100, %101, %102, %103"
#define MF_NUMBERS_13  \
    MF_NUMBERS_12 ", " \
                  "%104, %105, %106, %107, %108, %109, %110, %111"
#define MF_NUMBERS_14  \
    MF_NUMBERS_13 ", " \
                  "%112, %113, %114, %115, %116, %117, %118, %119"
#define MF_NUMBERS_15  \
    MF_NUMBERS_14 ", " \
                  "%120, %121, %122, %123, %124, %125, %126, %127"

/* Accumulator operands: the macro HALF is for eight tokens, macro number i for 16·(i + 1) tokens. */
#define MF_SUMS_AT(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define MF_SUMS_HALF  MF_SUMS_AT(0)
#define MF_SUMS_0     MF_SUMS_AT(0), MF_SUMS_AT(1)
#define MF_SUMS_1     MF_SUMS_0, MF_SUMS_AT(2), MF_SUMS_AT(3)
#define MF_SUMS_2     MF_SUMS_1, MF_SUMS_AT(4), MF_SUMS_AT(5)
#define MF_SUMS_3     MF_SUMS_2, MF_SUMS_AT(6), MF_SUMS_AT(7)
#define MF_SUMS_4     MF_SUMS_3, MF_SUMS_AT(8), MF_SUMS_AT(9)
#define MF_SUMS_5     MF_SUMS_4, MF_SUMS_AT(10), MF_SUMS_AT(11)
#define MF_SUMS_6     MF_SUMS_5, MF_SUMS_AT(12), MF_SUMS_AT(13)
#define MF_SUMS_7     MF_SUMS_6, MF_SUMS_AT(14), MF_SUMS_AT(15)
#define MF_SUMS_8     MF_SUMS_7, MF_SUMS_AT(16), MF_SUMS_AT(17)
#define MF_SUMS_9     MF_SUMS_8, MF_SUMS_AT(18), MF_SUMS_AT(19)
#define MF_SUMS_10    MF_SUMS_9, MF_SUMS_AT(20), MF_SUMS_AT(21)
#define MF_SUMS_11    MF_SUMS_10, MF_SUMS_AT(22), MF_SUMS_AT(23)
#define MF_SUMS_12    MF_SUMS_11, MF_SUMS_AT(24), MF_SUMS_AT(25)
#define MF_SUMS_13    MF_SUMS_12, MF_SUMS_AT(26), MF_SUMS_AT(27)
#define MF_SUMS_14    MF_SUMS_13, MF_SUMS_AT(28), MF_SUMS_AT(29)
#define MF_SUMS_15    MF_SUMS_14, MF_SUMS_AT(30), MF_SUMS_AT(31)

template <int N8> struct mf_wgmma;

/* n: number of tokens; part: suffix of the register lists above; nw, nx, nadds: numbers of the operands after
 * the accumulators. */
#define MF_WGMMA_SS(name, types, ending, n, part, nw, nx, nadds)                              \
    static __device__ __forceinline__ void name(float(*d)[4], u64 w, u64 x, int adds)         \
    {                                                                                         \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " nadds                                  \
                     ", 0; wgmma.mma_async.sync.aligned.m64n" #n types " {" MF_NUMBERS_##part \
                     "}, " nw ", " nx ", p, " ending "; }\n"                                  \
                     : MF_SUMS_##part                                                         \
                     : "l"(w), "l"(x), "r"(adds));                                            \
    }
/* Takes operand A from registers (the "RS" variant). Each warp holds its sixteen rows of A in the layout of
 * mf_mma_bf16. */
#define MF_WGMMA_RS(n, part, w0, w1, w2, w3, nx, nadds)                                                  \
    static __device__ __forceinline__ void bf16_rs(float(*d)[4], const u32 *w, u64 x, int adds)          \
    {                                                                                                    \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " nadds ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
                     "k16.f32.bf16.bf16 {" MF_NUMBERS_##part "}, {" w0 ", " w1 ", " w2 ", " w3 "}, " nx  \
                                                             ", p, 1, 1, 0; }\n"                         \
                     : MF_SUMS_##part                                                                    \
                     : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(x), "r"(adds));                   \
    }
#define MF_WGMMA_DEFINE(n8, n, part, o0, o1, o2, o3, o4, o5)                      \
    template <> struct mf_wgmma<n8> {                                             \
        MF_WGMMA_SS(bf16, "k16.f32.bf16.bf16", "1, 1, 0, 0", n, part, o0, o1, o2) \
        MF_WGMMA_SS(fp8, "k32.f32.e4m3.e4m3", "1, 1", n, part, o0, o1, o2)        \
        MF_WGMMA_RS(n, part, o0, o1, o2, o3, o4, o5)                              \
    };
MF_WGMMA_DEFINE(1, 8, HALF, "%4", "%5", "%6", "%7", "%8", "%9")
MF_WGMMA_DEFINE(2, 16, 0, "%8", "%9", "%10", "%11", "%12", "%13")
MF_WGMMA_DEFINE(4, 32, 1, "%16", "%17", "%18", "%19", "%20", "%21")
MF_WGMMA_DEFINE(6, 48, 2, "%24", "%25", "%26", "%27", "%28", "%29")
MF_WGMMA_DEFINE(8, 64, 3, "%32", "%33", "%34", "%35", "%36", "%37")
MF_WGMMA_DEFINE(10, 80, 4, "%40", "%41", "%42", "%43", "%44", "%45")
MF_WGMMA_DEFINE(12, 96, 5, "%48", "%49", "%50", "%51", "%52", "%53")
MF_WGMMA_DEFINE(16, 128, 7, "%64", "%65", "%66", "%67", "%68", "%69")
MF_WGMMA_DEFINE(32, 256, 15, "%128", "%129", "%130", "%131", "%132", "%133")

#undef MF_WGMMA_DEFINE
#undef MF_WGMMA_RS
#undef MF_WGMMA_SS
