/* Checks the emulator itself. It reports each planted fault with a description and a source line under every
 * lane order, and the kernel without a fault computes the right result. */
#include <errno.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "emulator/device_emulated.h"
#include "emulator/faults.h"
#include "kernels/families/family_hip.h"
#include "support/mf_check.h"

#define LAUNCHES 6 /* each lane order twice; two seeds for the pseudorandom order */

/* clang-format off */
#define UNORDERED_READ  "reads, without a barrier, data written by lane"
#define UNORDERED_WRITE "overwrites, without a barrier, data"
#define UNWRITTEN       "reads uninitialised data"
#define COPY_PENDING    "reads the destination of a pending copy started by lane"

static const struct {
    const char *says[3]; /* accepted messages; the lane order decides which one appears */
    /* a fault of asynchronous copies; harmless if the architecture holds copies in registers */
    bool of_copies;
} faults[N_FAULTS] = {
    [FAULT_BARRIER]      = {{UNORDERED_READ, UNWRITTEN, COPY_PENDING}},
    [FAULT_WAVE_SYNC]    = {{UNORDERED_READ, UNWRITTEN}},
    [FAULT_LAST_BARRIER] = {{UNORDERED_READ, UNORDERED_WRITE}},
    [FAULT_STATIC_BARRIER] = {{UNORDERED_READ, UNWRITTEN}},
    [FAULT_WAIT]         = {{COPY_PENDING}, .of_copies = true},
    [FAULT_SHALLOW_WAIT] = {{COPY_PENDING}, .of_copies = true},
    [FAULT_EARLY_COPY]   = {{UNORDERED_READ, UNORDERED_WRITE, COPY_PENDING}},
    [FAULT_LDS_BEYOND]   = {{"at 2048 of LDS: out of bounds, the launch has 2048"}},
    [FAULT_UNWRITTEN]    = {{UNWRITTEN ": 4 bytes at 2044 of LDS"}},
    [FAULT_READ_BEYOND]  = {{"lane 127 reads 4 bytes out of bounds: at 512 of a buffer of 512 bytes"}},
    [FAULT_READ_BEFORE]  = {{"lane 0 reads 4 bytes out of bounds"}},
    [FAULT_WRITE_BEYOND] = {{"lane 9 writes 4 bytes out of bounds: at 1024 of a buffer of 1024 bytes"}},
    [FAULT_INPUT]        = {{"lane 9 writes 4 bytes at 36 of an input of 512 bytes"}},
    [FAULT_COPY_BEYOND]  = {{"lane 127 reads 4 bytes out of bounds: at 512 of a buffer of 512 bytes"}},
    [FAULT_UNALIGNED]    = {{"accesses 16 bytes at an address that is not a multiple of the size"}},
    [FAULT_DIVERGED]     = {{", other lanes of its wave are at"}},
    [FAULT_STUCK]        = {{" for other lanes of their wave"}},
    [FAULT_NO_ARRIVAL]   = {{"1 for another block"}},
};
/* clang-format on */

static bool is_expected(int fault, const char *why)
{
    for (size_t i = 0; i < MF_ARRAY_LEN(faults[0].says) && faults[fault].says[i]; i++) {
        if (strstr(why, faults[fault].says[i]))
            return true;
    }
    return false;
}

/* On AMD, copies are held in registers, so no copy is pending in LDS. */
static const char *const flavours[] = {"sm_89", "gfx90a"};
static struct mf_device *devices[MF_ARRAY_LEN(flavours)], *device;
static uint32_t *in, *out; /* separate allocations, so no registered memory lies next to their ends */

/* Loads the module anew for each launch, because a fault can leave the grid barrier's counters non-zero. */
static int launch_of(const char *function, int mode, const struct mf_grid *grid)
{
    const struct mf_code code = {.source = "faults.hip", .function = function};
    const struct fault_args args = {in, out, mode, 0};
    struct mf_hip_function kernel;

    ck_assert_int_eq(mf_hip_function_open(device, &code, &kernel), 0);
    int r = mf_hip_launch(&kernel, grid, &args, sizeof(args));
    mf_hip_function_close(&kernel);
    return r;
}

static int launch(int mode)
{
    const struct mf_grid grid = {FAULT_BLOCKS, 1, 1, FAULT_LANES, FAULT_LDS_WORDS * 4, false, false};
    return launch_of("mf_faults", mode, &grid);
}

static void setup(void)
{
    size_t n_in = FAULT_LANES, n_out = FAULT_BLOCKS * FAULT_LANES;

    in = aligned_alloc(16, n_in * 4);
    out = aligned_alloc(16, n_out * 4);
    ck_assert(in && out);
    for (uint32_t i = 0; i < n_in; i++)
        in[i] = i * i + 1;
    for (size_t f = 0; f < MF_ARRAY_LEN(flavours); f++) {
        ck_assert_int_eq(mf_device_emulated_open(flavours[f], 1, 5, &devices[f]), 0);
        mf_device_emulated_allow(devices[f], in, n_in * 4, false);
        mf_device_emulated_allow(devices[f], out, n_out * 4, true);
        device = devices[f];
        ck_assert_int_eq(launch(FAULT_NONE), 0);
    }
}

static void teardown(void)
{
    for (size_t f = 0; f < MF_ARRAY_LEN(flavours); f++)
        (void)mf_device_close(devices[f]);
    free(in);
    free(out);
}

/* Computes the output of the kernel without a fault. */
static void expect(uint32_t want[FAULT_LANES], uint32_t wave)
{
    uint32_t n = FAULT_LANES, first[FAULT_LANES], second[FAULT_LANES], third[FAULT_LANES];

    for (uint32_t t = 0; t < n; t++)
        first[t] = in[(t + 32) % n] + 3 * in[(t + 1) % n] + 5 * ((t + 1) % 2 ? in[(t + 1) % n] : 0);
    for (uint32_t t = 0; t < n; t++)
        second[t] = first[t] + first[t ^ 1];
    for (uint32_t t = 0; t < n; t++)
        third[t] = second[t] + second[n - 1 - t] + second[(t + n - 64) % n];
    for (uint32_t t = 0; t < n; t++)
        first[t] = third[t] + third[t % wave < 3 ? t : t - 3];
    for (uint32_t t = 0; t < n; t++)
        want[t] = first[t] + first[t / 4 * 4];
}

MF_TEST(test_correct_result, .rows = MF_ARRAY_LEN(flavours))
{
    uint32_t want[FAULT_LANES];

    device = devices[_i];
    expect(want, _i == 0 ? 32 : 64);
    for (int i = 0; i < LAUNCHES; i++) {
        memset(out, 0, FAULT_BLOCKS * sizeof(want));
        ck_assert_msg(launch(FAULT_NONE) == 0, "%s", mf_device_emulated_why(device));
        for (int b = 0; b < FAULT_BLOCKS; b++)
            ck_assert_mem_eq(out + b * FAULT_LANES, want, sizeof(want));
    }
}

MF_TEST(test_fault_reported, .rows = N_FAULTS * MF_ARRAY_LEN(flavours))
{
    int flavour = _i / N_FAULTS, fault = _i % N_FAULTS,
        want = flavour > 0 && faults[fault].of_copies ? 0 : -EFAULT;

    device = devices[flavour];
    for (int i = 0; fault != FAULT_NONE && i < LAUNCHES; i++) {
        int r = launch(fault);
        const char *why = mf_device_emulated_why(device);
        ck_assert_msg(r == want, "%s: %d, %s", flavours[flavour], r, r < 0 ? why : "found nothing");
        if (r == 0)
            continue;
        ck_assert_msg(is_expected(fault, why), "%s", why);
        /* a deadlock has no source line */
        ck_assert_msg(strstr(why, "(faults.hip:") || strstr(why, "is deadlocked"), "%s", why);
    }
    ck_assert_msg(launch(FAULT_NONE) == 0, "after a fault: %s", mf_device_emulated_why(device));
}

/* Incomplete waves run but must not make collective calls. */
MF_TEST(test_incomplete_wave, .rows = MF_ARRAY_LEN(flavours))
{
    const struct mf_grid grid = {1, 1, 1, FAULT_LANES - 8, 0, false, false};

    device = devices[_i];
    memset(out, 0, FAULT_LANES * 4);
    ck_assert_int_eq(launch_of("mf_short_wave", FAULT_NONE, &grid), 0);
    for (uint32_t t = 0; t < FAULT_LANES; t++)
        ck_assert_uint_eq(out[t], t < FAULT_LANES - 8 ? t + 1 : 0);
    ck_assert_int_eq(launch_of("mf_short_wave", FAULT_BARRIER, &grid), -EFAULT);
    ck_assert_ptr_nonnull(
        strstr(mf_device_emulated_why(device), _i == 0 ? "in a wave of 24 lanes" : "in a wave of 56 lanes"));
}

/* Invalid launch dimensions are refused. */
MF_TEST(test_invalid_launch)
{
    static const struct mf_grid grids[] = {{1, 1, 1, 0, 0, false, false},
                                           {1, 1, 1, 2048, 0, false, false},
                                           {1, 1, 1, 32, 1 << 20, false, false}};

    device = devices[0];
    for (size_t i = 0; i < MF_ARRAY_LEN(grids); i++)
        ck_assert_int_eq(launch_of("mf_faults", FAULT_NONE, &grids[i]), -EINVAL);
}

int main(void)
{
    return mf_check_main(
        &(struct mf_test_group){.timeout_s = 60, .setup_all = setup, .teardown_all = teardown});
}
