/* Fuzzes kernel manifests. No input may cause a crash, parsed values are within limits, and each rejection
 * has a line and a reason. Loading from a file must give the same result. */
#include "common/base/cleanup.h"
#include "fuzz.h"
#include "kernels/families/asm_manifest.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* is_made: true after mkdtemp, because a generated name may also end in X */
static char folder[] = "/tmp/moefarm-fuzz-XXXXXX";
static bool is_made;

static char *path_of(const char *below)
{
    static char path[96];
    (void)snprintf(path, sizeof(path), "%s%s", folder, below);
    return path;
}

static void remove_folder(void)
{
    static const char *const folders[] = {"/gfx942/fmoe/silu", "/gfx942/fmoe", "/gfx942", ""};
    (void)unlink(path_of("/gfx942/fmoe/silu/fuzz.csv"));
    for (size_t i = 0; i < MF_ARRAY_LEN(folders); i++)
        (void)rmdir(path_of(folders[i]));
}

static void make_folder(void)
{
    MF_MUST(mkdtemp(folder));
    is_made = true;
    MF_MUST(mkdir(path_of("/gfx942"), 0700) == 0 && mkdir(path_of("/gfx942/fmoe"), 0700) == 0);
    MF_MUST(mkdir(path_of("/gfx942/fmoe/silu"), 0700) == 0);
    (void)atexit(remove_folder);
}

static void load_file(const uint8_t *data, size_t size, const struct mf_asm_manifest *same)
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    FILE *f = fopen(path_of("/gfx942/fmoe/silu/fuzz.csv"), "we");
    MF_MUST(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
    MF_MUST(mf_asm_manifest_load(&m, folder, "gfx942") == 0 && m.n == same->n);
    MF_MUST(m.n_problems == same->n_problems);
    mf_asm_manifest_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mf_asm_manifest m = MF_ASM_MANIFEST_INIT;
    int r = mf_asm_manifest_add(&m, "gfx942", "fuzz.csv", (const char *)data, size);
    MF_MUST(r == 0 || m.n > 1000);
    for (size_t i = 0; i < m.n; i++) {
        const struct mf_asm_kernel *k = &m.kernels[i];
        MF_MUST(k->name[0] && k->co_name[0] && !strchr(k->co_name, '/') && k->co_name[0] != '.');
        MF_MUST(k->sub_m > 0 && k->sub_n > 0 && k->flat >= 0 && k->flat <= 2);
        MF_MUST(mf_asm_manifest_find(&m, "gfx942", k->name) == k);
    }
    for (size_t i = 0; i < m.n_problems; i++)
        MF_MUST(m.problems[i].reason[0] && m.problems[i].line >= 0);
    /* A header without rows is a manifest without kernels. Without a header there must be a problem. */
    MF_MUST(m.n > 0 || m.n_problems > 0 || memmem(data, size, "knl_name", 8));
    if (!is_made)
        make_folder();
    if (r == 0)
        load_file(data, size, &m);
    mf_asm_manifest_release(&m);
    return 0;
}
