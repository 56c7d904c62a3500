/* hipRTC: compiles the given texts, and no other files, to an object of the emulator. Like the real library
 * it reports version 9.0 in every release. */
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hiprtc.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "emulator/object.h"
#include "support/remove_tree.h"

#undef CALL
#define CALL __attribute__((visibility("default"))) hiprtcResult

#define OPTIONS_MAX 4096
#define FILE_MAX    (16u << 20)

struct _hiprtcProgram {
    char folder[PATH_MAX / 4], source[64];
    char *log, *code;
    size_t log_bytes, code_bytes;
};

CALL hiprtcVersion(int *major, int *minor)
{
    *major = 9;
    *minor = 0;
    return HIPRTC_SUCCESS;
}

static bool write_text(const char *folder, const char *name, const char *text)
{
    char path[PATH_MAX];
    mf_format(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = strchr(name, '/') ? NULL : fopen(path, "we");
    bool whole = f && fputs(text, f) >= 0;
    return f && fclose(f) == 0 && whole;
}

static char *read_whole(const char *path, size_t *ret_bytes)
{
    _cleanup_(mf_fclosep) FILE *f = fopen(path, "re");
    char *text = f ? malloc(FILE_MAX) : NULL;
    *ret_bytes = text ? fread(text, 1, FILE_MAX, f) : 0;
    return text;
}

CALL hiprtcDestroyProgram(hiprtcProgram *program)
{
    struct _hiprtcProgram *p = *program;
    (void)remove_tree(p->folder);
    free(p->log);
    free(p->code);
    free(p);
    *program = NULL;
    return HIPRTC_SUCCESS;
}

CALL hiprtcCreateProgram(hiprtcProgram *ret, const char *source, const char *name, int n,
                         const char **headers, const char **names)
{
    struct _hiprtcProgram *p = calloc(1, sizeof(*p));
    if (!p)
        return HIPRTC_ERROR_OUT_OF_MEMORY;
    mf_format(p->folder, sizeof(p->folder), "%s/fake-hiprtc-XXXXXX",
              getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    mf_format(p->source, sizeof(p->source), "%s", name);
    bool ok = mkdtemp(p->folder) && write_text(p->folder, name, source);
    for (int i = 0; ok && i < n; i++)
        ok = write_text(p->folder, names[i], headers[i]);
    if (!ok) {
        (void)hiprtcDestroyProgram(&p);
        return HIPRTC_ERROR_PROGRAM_CREATION_FAILURE;
    }
    *ret = p;
    return HIPRTC_SUCCESS;
}

/* Parses the options that matter to the emulator. Accepts and ignores the options for GPU code generation. */
static hiprtcResult take_options(int n, const char **options, char *defines, const struct mf_flavour **ret)
{
    static const char *const dropped[] = {"-std=c++17", "-O3"};
    static const char arch[] = "--gpu-architecture=";
    size_t used = 0;

    defines[0] = '\0';
    *ret = NULL;
    for (int i = 0; i < n; i++) {
        bool known = false;
        for (size_t j = 0; j < MF_ARRAY_LEN(dropped); j++)
            known |= strcmp(options[i], dropped[j]) == 0;
        if (strncmp(options[i], arch, strlen(arch)) == 0)
            *ret = mf_flavour_find(options[i] + strlen(arch));
        else if (strncmp(options[i], "-D", 2) == 0 && !strchr(options[i], '\''))
            used += (size_t)snprintf(defines + used, OPTIONS_MAX - used, " '%s'", options[i]);
        else if (!known)
            return HIPRTC_ERROR_INVALID_OPTION;
        if (used >= OPTIONS_MAX)
            return HIPRTC_ERROR_INVALID_OPTION;
    }
    return HIPRTC_SUCCESS;
}

CALL hiprtcCompileProgram(hiprtcProgram p, int n, const char **options)
{
    static const char unknown[] = "error: the architecture is none that the emulator has\n";
    const struct mf_flavour *flavour;
    char defines[OPTIONS_MAX], path[PATH_MAX], log[PATH_MAX + 8];
    pid_t child;

    hiprtcResult r = take_options(n, options, defines, &flavour);
    if (r != HIPRTC_SUCCESS)
        return r;
    if (!flavour || flavour->wave_lanes != 64) {
        p->log = strdup(unknown);
        p->log_bytes = sizeof(unknown) - 1;
        return HIPRTC_ERROR_COMPILATION;
    }
    const struct mf_object_build b = {p->folder, p->folder, p->source, flavour, defines};
    mf_format(path, sizeof(path), "%s/object", p->folder);
    mf_format(log, sizeof(log), "%s.log", path);
    if (mf_object_prepare(p->folder) < 0 || mf_object_start(&b, path, &child) < 0)
        return HIPRTC_ERROR_INTERNAL_ERROR;
    bool made = mf_object_finish(child);
    p->log = read_whole(log, &p->log_bytes);
    if (made)
        p->code = read_whole(path, &p->code_bytes);
    return p->code ? HIPRTC_SUCCESS : HIPRTC_ERROR_COMPILATION;
}

/* The log size includes the terminating NUL. */
CALL hiprtcGetProgramLogSize(hiprtcProgram p, size_t *ret)
{
    *ret = p->log_bytes + 1;
    return HIPRTC_SUCCESS;
}

CALL hiprtcGetProgramLog(hiprtcProgram p, char *ret)
{
    if (p->log)
        memcpy(ret, p->log, p->log_bytes);
    ret[p->log_bytes] = '\0';
    return HIPRTC_SUCCESS;
}

CALL hiprtcGetCodeSize(hiprtcProgram p, size_t *ret)
{
    *ret = p->code_bytes;
    return p->code ? HIPRTC_SUCCESS : HIPRTC_ERROR_INVALID_PROGRAM;
}

CALL hiprtcGetCode(hiprtcProgram p, char *ret)
{
    if (!p->code)
        return HIPRTC_ERROR_INVALID_PROGRAM;
    memcpy(ret, p->code, p->code_bytes);
    return HIPRTC_SUCCESS;
}
