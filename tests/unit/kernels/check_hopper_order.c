/* Tests the tile order (kernels/gpu/src/hopper/hopper_tile_order.inc.h): every tile is processed exactly
 * once, however many tiles each L2 partition claims. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/base/cleanup.h"
#include "support/mf_check.h"

typedef int32_t i32;
typedef uint32_t u32;
static i32 run_length, tiles_of_row;
#define MF_DEVICE     static
#define MF_CEIL(a, b) (((a) + (b)-1) / (b))
#define RUN           run_length
#define TILES_N       tiles_of_row
#define COLS          128
static u32 mf_product_high(u32 a, u32 b)
{
    return (u32)((uint64_t)a * b >> 32);
}
#include "kernels/gpu/src/hopper/hopper_tile_order.inc.h"

#define HALF 0x80000000u

static const struct {
    i32 blocks, columns, tiles_n, run;
    u32 near;
} rows[] = {
    {1, 1, 1, 1, 0},
    {1, 1, 1, 1, HALF},
    {2, 1, 1, 1, HALF},
    {3, 2, 2, 1, HALF},
    {385, 2, 2, 1, HALF},
    {385, 1, 28, 1, 0},
    {385, 1, 28, 1, HALF},
    {385, 5, 28, 1, HALF},
    {385, 28, 28, 4, HALF},
    {386, 3, 28, 4, HALF},
    {387, 28, 28, 4, 0},
    {7, 3, 16, 4, HALF},
    {131, 3, 3, 1, 0x7c1f07c1u},
    {131, 3, 3, 1, 1u},
    {5, 1, 3, 4, 0xffffffffu},
    {0, 1, 3, 1, HALF},
    {0, 1, 3, 4, 0},
};

static struct order set(int row)
{
    run_length = rows[row].run;
    tiles_of_row = rows[row].tiles_n;
    return (struct order){rows[row].blocks, rows[row].columns, rows[row].near};
}

/* Processes all tiles. L2 partition 0 claims `share` of every four runs, partition 1 the other runs. A
 * partition that has no runs left claims runs of the other partition. */
static void process_all(struct order o, int share)
{
    _cleanup_(mf_freep) int *n_processed = calloc((size_t)(o.n_blocks * TILES_N) + 1, sizeof(*n_processed));
    i32 claimed[2] = {0, 0}, left = 0, block, col;
    ck_assert_ptr_nonnull(n_processed);
    for (int n_claims = 0;; n_claims++) {
        const i32 half = n_claims % 4 >= share;
        i32 run = nth_run(o, half, claimed[half]++);
        if (run < 0)
            run = nth_run(o, !half, claimed[!half]++);
        if (run < 0)
            break;
        for (i32 i = run * RUN; i < (run + 1) * RUN; i++) {
            ck_assert(find_tile(o, i, &block, &col));
            ck_assert(block >= 0 && col >= 0 && col % COLS == 0 && col / COLS < TILES_N);
            if (block >= o.n_blocks) {
                ck_assert(i > run * RUN);
                continue;
            }
            n_processed[block * TILES_N + col / COLS]++;
            left++;
        }
    }
    ck_assert_int_eq(left, o.n_blocks * TILES_N);
    for (i32 i = 0; i < o.n_blocks * TILES_N; i++)
        ck_assert_int_eq(n_processed[i], 1);
    ck_assert(!find_tile(o, MF_CEIL(o.n_blocks, RUN) * RUN * TILES_N, &block, &col));
    ck_assert(!find_tile(o, INT32_MAX, &block, &col));
}

MF_TEST(each_tile_once, .rows = MF_ARRAY_LEN(rows))
{
    const struct order o = set(_i);
    for (int share = 0; share <= 4; share++)
        process_all(o, share);
}

/* Each L2 partition has its own blocks. It processes a chunk of columns of all its blocks before the next
 * chunk. */
MF_TEST(partitions_and_columns, .rows = MF_ARRAY_LEN(rows))
{
    const struct order o = set(_i);
    const i32 split = first_runs(o) * RUN;
    for (i32 half = 0; half < 2; half++) {
        i32 run, chunk = 0;
        for (i32 n = 0; (run = nth_run(o, half, n)) >= 0; n++) {
            i32 block, col;
            ck_assert(find_tile(o, run * RUN, &block, &col));
            ck_assert_int_eq(block >= split, half);
            ck_assert_int_ge(col / COLS / o.columns, chunk);
            chunk = col / COLS / o.columns;
        }
    }
}

int main(void)
{
    return mf_check_main(NULL);
}
