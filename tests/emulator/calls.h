/* What compiled kernels and the emulator know of each other; read by the kernels' C++ and by the emulator's C.
 *
 * A source is a shared object with its functions. The emulator hands it this table before each launch and keeps `now` at
 * the lane that runs; every word of the dialect that touches another lane, LDS in the background or time ends here. Loads
 * and stores arrive by the hooks of beside.cc, whatever wrote them. */
#pragma once

#include <stdint.h>

/* LDS that a launch may ask for: what a block of an H200 has. */
#define MF_EMULATOR_LDS (228 * 1024)
/* Bytes of a lane's stack, which is its own. */
#define MF_EMULATOR_STACK (64 * 1024)

struct mf_emulator_dim {
    uint32_t x, y, z;
};

/* Kinds of access. Any alignment: otherwise an address has to be a multiple of the size. */
#define MF_ACCESS_READ  0
#define MF_ACCESS_WRITE 1
#define MF_ACCESS_LOOSE 2

struct mf_emulator_calls {
    struct {
        struct mf_emulator_dim thread, block, block_dim, grid_dim;
        uintptr_t stack;
    } now;
    /* Before bytes at p, not of its stack, are read or written by the running lane; pc is where in the kernel. */
    void (*access)(struct mf_emulator_calls *e, const void *p, uint32_t bytes, int kind, const void *pc);
    void (*barrier)(struct mf_emulator_calls *e); /* all lanes of the block */
    /* All lanes of the wave, at a call of one name; the last to come runs `all` on what each brought. NULL: they are
     * synchronised, with what they wrote to LDS. */
    void (*meet)(struct mf_emulator_calls *e, const char *name, void *mine, void (*all)(void **lanes),
                 const void *pc);
    /* bytes into LDS, of which the first `read` are read and the others zeros; they land at the lane's own copy_wait of their
     * group. */
    void (*copy)(struct mf_emulator_calls *e, void *lds, const void *global, uint32_t bytes, uint32_t read,
                 const void *pc);
    void (*copy_commit)(struct mf_emulator_calls *e);
    void (*copy_wait)(struct mf_emulator_calls *e, uint32_t groups);
    void (*pause)(struct mf_emulator_calls *e); /* other blocks run */
    uint64_t (*clock_ns)(struct mf_emulator_calls *e);
};

/* A function: on a lane, with its block of so many bytes of arguments. */
typedef void (*mf_emulator_call_fn)(const void *arguments);
struct mf_emulator_kernel {
    const char *name;
    mf_emulator_call_fn call;
    uint64_t bytes;
};

/* What the shared object exports: itself to bind as mf_emulator_bind, its functions as mf_emulator_kernels, the last without
 * a name, and as mf_emulator_lds where its LDS of launches is, MF_EMULATOR_LDS bytes of it. */
typedef void (*mf_emulator_bind_fn)(struct mf_emulator_calls *e);
typedef void *(*mf_emulator_lds_fn)(void);
