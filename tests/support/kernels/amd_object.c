#include "support/kernels/amd_object.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"

#define NOTE_METADATA 32 /* NT_AMDGPU_METADATA, owner "AMDGPU" */
#define DEPTH_MAX     16
#define KEY_MAX       64

struct bytes {
    const uint8_t *at, *end;
};

/* ---- MessagePack: maps, arrays, text, integers, booleans ---- */

enum item_kind { ITEM_MAP, ITEM_ARRAY, ITEM_TEXT, ITEM_NUMBER, ITEM_BAD };
struct item {
    enum item_kind kind;
    uint64_t n; /* number of entries (map, array), number of bytes (text), or the value (number) */
    const char *text;
};

static uint64_t take_number(struct bytes *b, int bytes)
{
    uint64_t v = 0;

    if (b->end - b->at < bytes) {
        b->at = b->end;
        return 0;
    }
    for (int i = 0; i < bytes; i++)
        v = v << 8 | *b->at++;
    return v;
}

static struct item take_item(struct bytes *b)
{
    /* from, to: range of the first byte. mask: bits of the first byte that hold n. bytes: number of bytes
     * after the first byte that hold n if the first byte does not. */
    static const struct {
        uint8_t from, to, mask, bytes;
        enum item_kind kind;
    } kinds[] = {
        {0x00, 0x7f, 0x7f, 0, ITEM_NUMBER}, {0x80, 0x8f, 0x0f, 0, ITEM_MAP},
        {0x90, 0x9f, 0x0f, 0, ITEM_ARRAY},  {0xa0, 0xbf, 0x1f, 0, ITEM_TEXT},
        {0xc2, 0xc3, 0x01, 0, ITEM_NUMBER}, {0xcc, 0xcc, 0, 1, ITEM_NUMBER},
        {0xcd, 0xcd, 0, 2, ITEM_NUMBER},    {0xce, 0xce, 0, 4, ITEM_NUMBER},
        {0xcf, 0xcf, 0, 8, ITEM_NUMBER},    {0xd9, 0xd9, 0, 1, ITEM_TEXT},
        {0xda, 0xda, 0, 2, ITEM_TEXT},      {0xdc, 0xdc, 0, 2, ITEM_ARRAY},
        {0xde, 0xde, 0, 2, ITEM_MAP},
    };
    struct item bad = {.kind = ITEM_BAD};

    if (b->at == b->end)
        return bad;
    uint8_t first = *b->at++;
    for (size_t i = 0; i < MF_ARRAY_LEN(kinds); i++) {
        if (first < kinds[i].from || first > kinds[i].to)
            continue;
        struct item r = {.kind = kinds[i].kind, .n = first & kinds[i].mask};
        if (kinds[i].bytes)
            r.n = take_number(b, kinds[i].bytes);
        if (r.kind != ITEM_TEXT)
            return r;
        if ((uint64_t)(b->end - b->at) < r.n)
            return bad;
        r.text = (const char *)b->at;
        b->at += r.n;
        return r;
    }
    return bad;
}

/* ---- kernels in the metadata ---- */

static const struct {
    const char *key;
    size_t at;
} numbers[] = {
    {".vgpr_count", offsetof(struct amd_kernel, vgprs)},
    {".agpr_count", offsetof(struct amd_kernel, agprs)},
    {".sgpr_count", offsetof(struct amd_kernel, sgprs)},
    {".vgpr_spill_count", offsetof(struct amd_kernel, vgpr_spills)},
    {".sgpr_spill_count", offsetof(struct amd_kernel, sgpr_spills)},
    {".group_segment_fixed_size", offsetof(struct amd_kernel, lds)},
    {".private_segment_fixed_size", offsetof(struct amd_kernel, scratch)},
    {".max_flat_workgroup_size", offsetof(struct amd_kernel, threads)},
    {".wavefront_size", offsetof(struct amd_kernel, wave)},
};

static bool is_key(const struct item *k, const char *word)
{
    return k->kind == ITEM_TEXT && k->n == strlen(word) && memcmp(k->text, word, k->n) == 0;
}

static void note(struct amd_kernel *k, const struct item *key, const struct item *value)
{
    if (is_key(key, ".name") && value->kind == ITEM_TEXT)
        mf_format(k->name, sizeof(k->name), "%.*s", (int)MF_MIN(value->n, (uint64_t)KEY_MAX), value->text);
    for (size_t i = 0; i < MF_ARRAY_LEN(numbers) && value->kind == ITEM_NUMBER; i++) {
        int n = (int)MF_MIN(value->n, (uint64_t)INT32_MAX);
        if (is_key(key, numbers[i].key))
            memcpy((char *)k + numbers[i].at, &n, sizeof(n));
    }
}

/* Walks over one item and its children. is_kernel: the item is a map in the array "amdhsa.kernels", so it
 * describes a kernel. Returns 1 if the named kernel was found, 0 if it was not found, -EINVAL if the data are
 * malformed. */
static int walk(struct bytes *b, const char *name, int depth, bool is_kernel, struct amd_kernel *ret)
{
    struct amd_kernel own = {.name = ""};
    struct item v = take_item(b);

    if (v.kind == ITEM_BAD || depth > DEPTH_MAX)
        return -EINVAL;
    for (uint64_t i = 0; i < v.n && (v.kind == ITEM_MAP || v.kind == ITEM_ARRAY); i++) {
        struct item key = {.kind = ITEM_BAD};
        if (v.kind == ITEM_MAP)
            key = take_item(b);
        struct bytes ahead = *b;
        struct item value = take_item(&ahead);
        if (is_kernel)
            note(&own, &key, &value);
        int r = walk(b, name, depth + 1, depth == 1 && v.kind == ITEM_ARRAY, ret);
        if (r != 0)
            return r;
    }
    if (!is_kernel || strcmp(own.name, name) != 0)
        return 0;
    *ret = own;
    return 1;
}

static int find_kernel(struct bytes notes, const char *name, struct amd_kernel *ret)
{
    while (notes.end - notes.at >= (ptrdiff_t)sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr h;
        memcpy(&h, notes.at, sizeof(h));
        const size_t name_bytes = (h.n_namesz + 3u) & ~3u, text_bytes = (h.n_descsz + 3u) & ~3u;
        const uint8_t *text = notes.at + sizeof(h) + name_bytes;
        if ((size_t)(notes.end - notes.at) < sizeof(h) + name_bytes + text_bytes)
            return -EINVAL;
        if (h.n_type == NOTE_METADATA && memcmp(notes.at + sizeof(h), "AMDGPU", 7) == 0) {
            struct bytes b = {text, text + h.n_descsz};
            int r = walk(&b, name, 0, false, ret);
            return r == 1 ? 0 : r == 0 ? -ENOENT : r;
        }
        notes.at = text + text_bytes;
    }
    return -EINVAL;
}

/* ---- code ---- */

const char *const amd_matrix_names[N_AMD_MATRIX] = {"bf16", "f16", "fp8", "int8"};

/* High half of an instruction's first word: the bits 110100111 of VOP3P and the opcode (CDNA 2 and CDNA 3
 * ISA, VOP3P-MAI). */
static const struct {
    uint16_t high;
    enum amd_matrix matrix;
} encodings[] = {
    {0xd3e7, AMD_MFMA_BF16}, /* v_mfma_f32_16x16x16_bf16_1k, gfx90a */
    {0xd3e1, AMD_MFMA_BF16}, /* v_mfma_f32_16x16x16_bf16, gfx942 */
    {0xd3cd, AMD_MFMA_F16},  /* v_mfma_f32_16x16x16_f16 */
    {0xd3f3, AMD_MFMA_FP8},  /* v_mfma_f32_16x16x32_fp8_fp8 */
    {0xd3d5, AMD_MFMA_INT8}, /* v_mfma_i32_16x16x16i8, gfx90a */
    {0xd3d7, AMD_MFMA_INT8}, /* v_mfma_i32_16x16x32_i8, gfx942 */
};

static void count_matrix(struct bytes code, struct amd_kernel *ret)
{
    for (; code.end - code.at >= 4; code.at += 4) {
        for (size_t i = 0; i < MF_ARRAY_LEN(encodings); i++)
            ret->matrix[encodings[i].matrix] += (code.at[3] << 8 | code.at[2]) == encodings[i].high;
    }
}

/* ---- file ---- */

static uint8_t *read_file(const char *path, size_t *ret_n)
{
    FILE *f = fopen(path, "re");
    long n = f && fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    uint8_t *bytes = n > 0 ? malloc((size_t)n) : NULL;

    if (bytes) {
        rewind(f);
        *ret_n = fread(bytes, 1, (size_t)n, f);
    }
    if (f)
        (void)fclose(f);
    return bytes;
}

int amd_object_read(const char *path, const char *name, struct amd_kernel *ret)
{
    size_t n = 0;
    _cleanup_(mf_freep) uint8_t *file = read_file(path, &n);
    struct amd_kernel k = {.name = ""};
    Elf64_Ehdr h;
    int r = -EINVAL;

    if (!file || n < sizeof(h) || memcmp(file, ELFMAG, SELFMAG) != 0)
        return -EINVAL;
    memcpy(&h, file, sizeof(h));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < h.e_shnum; i++) {
            Elf64_Shdr s;
            if (h.e_shoff > n || n - h.e_shoff < (size_t)(i + 1) * sizeof(s))
                return -EINVAL;
            memcpy(&s, file + h.e_shoff + (size_t)i * sizeof(s), sizeof(s));
            struct bytes b = {file + s.sh_offset, file + s.sh_offset + s.sh_size};
            if (s.sh_type == SHT_NOBITS || s.sh_offset > n || s.sh_size > n - s.sh_offset)
                continue;
            if (pass == 0 && s.sh_type == SHT_NOTE && r == -EINVAL)
                r = find_kernel(b, name, &k);
            if (pass == 1 && s.sh_type == SHT_PROGBITS && (s.sh_flags & SHF_EXECINSTR))
                count_matrix(b, &k);
        }
    }
    if (r == 0)
        *ret = k;
    return r;
}
