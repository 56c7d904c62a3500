/* Kernel manifests against any bytes: nothing crashes, what is read is within its limits, and what is refused has a
 * place and a reason. */
#include "fuzz.h"
#include "kernels/asm_manifest.h"

#include <string.h>

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
    /* A header without rows is a manifest of no kernels; what has no header is none */
    MF_MUST(m.n > 0 || m.n_problems > 0 || memmem(data, size, "knl_name", 8));
    mf_asm_manifest_release(&m);
    return 0;
}
