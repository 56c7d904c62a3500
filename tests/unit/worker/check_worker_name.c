/* worker/agent/worker_name.c: names are valid for a coordinator on any host, and distinct per device. */
#include "worker/agent/worker_name.h"

#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/run_program.h"

/* 50 letters: the longest host name that fits together with hip:nvidia:0 */
#define H50 "gpu-pool-of-a-very-long-name.rack17.example.org-00"
#define H64 "gpu-pool-of-a-very-long-name.rack17.example.org-00000000000000"

static const struct {
    const char *host, *device;
    size_t max_len;
    const char *name, *starts, *ends; /* name: NULL if it contains a hash */
} names[] = {
    {"node7", "hip:nvidia:0", 63, "node7-hip-nvidia-0", "", ""},
    {"node7", "sim:gfx942/304:0:a b", 63, "node7-sim-gfx942-304-0-a-b", "", ""},
    {H50, "hip:nvidia:0", 63, H50 "-hip-nvidia-0", "", ""},
    {H50 "1", "hip:nvidia:0", 63, NULL, "gpu-pool-of-a-very-long-name.rack17.examp", "-hip-nvidia-0"},
    {H64, "hip:nvidia:15", 63, NULL, "gpu-pool-of-a-very-long-name.rack17.", "-hip-nvidia-15"},
    {H64, "hip:nvidia:15", 59, NULL, "gpu-pool-of-a-very-long-name.rack", "-hip-nvidia-15"},
    {H64, "sim:a-very-long-class-of-a-simulated-device/304:0", 63, NULL, "gpu-pool-of-",
     "-sim-a-very-long-class-of-a-simulated-dev"},
};

MF_TEST(hosts_and_devices, .rows = MF_ARRAY_LEN(names))
{
    char name[MF_WORKER_NAME_MAX];
    const char *ends = names[_i].ends;

    mf_worker_name(names[_i].host, names[_i].device, names[_i].max_len, name);
    ck_assert_msg(mf_is_name(name, names[_i].max_len), "%s", name);
    if (names[_i].name) {
        ck_assert_str_eq(name, names[_i].name);
        return;
    }
    ck_assert_uint_eq(strlen(name), names[_i].max_len);
    ck_assert_msg(strncmp(name, names[_i].starts, strlen(names[_i].starts)) == 0, "%s", name);
    ck_assert_msg(strcmp(name + strlen(name) - strlen(ends), ends) == 0, "%s", name);
}

/* Hosts with a common prefix, as in a pool of machines, get distinct names. */
MF_TEST(names_are_distinct)
{
    char one[MF_WORKER_NAME_MAX], other[MF_WORKER_NAME_MAX];

    mf_worker_name(H64 "1", "hip:nvidia:0", MF_WORKER_NAME_MAX - 1, one);
    mf_worker_name(H64 "2", "hip:nvidia:0", MF_WORKER_NAME_MAX - 1, other);
    ck_assert_str_ne(one, other);
}

#define N63 "n12345678901234567890123456789012345678901234567890123456789012"
#define N59 "n1234567890123456789012345678901234567890123456789012345678"

static const struct {
    const char *name, *workers, *message;
} given[] = {
    {"--name=" N63, "--sim-workers=1", "cannot create the spool folder"}, /* valid, so it fails later */
    {"--name=" N63 "x", "--sim-workers=1", "--name: expected 1 to 63 letters, digits, _ . or -, not 'n12"},
    {"--name=" N59, "--sim-workers=256",
     "cannot create the spool folder"}, /* also valid, because NAME-255 has 63 letters */
    {"--name=" N59 "x", "--sim-workers=2",
     "--name: expected 1 to 59 letters, digits, _ . or - with --sim-workers"},
};

MF_TEST(given_names, .rows = MF_ARRAY_LEN(given))
{
    static const char *const program[] = {MF_BINARY_DIR "/worker/moefarm-worker", "--device=sim:gfx942/304:0",
                                          "--spool=/dev/null/spool", NULL};
    struct ran r = run_program(program, (const char *const[]){given[_i].name, given[_i].workers, NULL});

    ck_assert_int_ne(r.code, 0);
    ck_assert_msg(strstr(r.text, given[_i].message) != NULL, "%s", r.text);
}

int main(void)
{
    return mf_check_main(NULL);
}
