/* A fake libnvrtc.so.13 for tests: every program compiles to the same code object, which the fake driver
 * (fake_cuda.c) accepts. The functions have the types with which kernels/gpu/host/compile_main.c calls them.
 * */
#include <stddef.h>
#include <string.h>

#define CALL __attribute__((visibility("default"))) int

CALL nvrtcVersion(int *major, int *minor);
CALL nvrtcCreateProgram(void **program, const char *source, const char *name, int n,
                        const char *const *headers, const char *const *names);
CALL nvrtcDestroyProgram(void **program);
CALL nvrtcCompileProgram(void *program, int n, const char *const *options);
CALL nvrtcGetProgramLogSize(void *program, size_t *ret);
CALL nvrtcGetProgramLog(void *program, char *ret);
CALL nvrtcGetCUBINSize(void *program, size_t *ret);
CALL nvrtcGetCUBIN(void *program, char *ret);

static const char code[] = "fake code object";
static int program_object; /* object that every program points to */

CALL nvrtcVersion(int *major, int *minor)
{
    *major = 13;
    *minor = 99; /* so that tests can tell it from a real one */
    return 0;
}

CALL nvrtcCreateProgram(void **program, const char *source, const char *name, int n,
                        const char *const *headers, const char *const *names)
{
    (void)source, (void)name, (void)n, (void)headers, (void)names;
    *program = &program_object;
    return 0;
}

CALL nvrtcDestroyProgram(void **program)
{
    *program = NULL;
    return 0;
}

CALL nvrtcCompileProgram(void *program, int n, const char *const *options)
{
    (void)program, (void)n, (void)options;
    return 0;
}

CALL nvrtcGetProgramLogSize(void *program, size_t *ret)
{
    (void)program;
    *ret = 1;
    return 0;
}

CALL nvrtcGetProgramLog(void *program, char *ret)
{
    (void)program;
    *ret = '\0';
    return 0;
}

CALL nvrtcGetCUBINSize(void *program, size_t *ret)
{
    (void)program;
    *ret = sizeof(code);
    return 0;
}

CALL nvrtcGetCUBIN(void *program, char *ret)
{
    (void)program;
    memcpy(ret, code, sizeof(code));
    return 0;
}
