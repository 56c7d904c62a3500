/* Interface between compiled kernels (C++) and the emulator (C).
 *
 * Each kernel source becomes a shared object. Before a launch, the emulator gives the object a pointer to the
 * table below. During the launch, `now` describes the running lane. Dialect primitives that involve other
 * lanes, asynchronous LDS copies or time call the functions of the table. Plain loads and stores reach
 * `access` through the hooks in tsan_hooks.cc. */
#pragma once

#include <stdint.h>

/* Maximum LDS of a launch in bytes, as on an H200. */
#define MF_EMULATOR_LDS (228 * 1024)
/* Bytes of each lane's private stack. */
#define MF_EMULATOR_STACK (64 * 1024)

struct mf_emulator_dim {
    uint32_t x, y, z;
};

/* Kinds of access. Without MF_ACCESS_UNALIGNED the address must be a multiple of the size. */
#define MF_ACCESS_READ      0
#define MF_ACCESS_WRITE     1
#define MF_ACCESS_UNALIGNED 2

struct mf_emulator_calls {
    struct {
        struct mf_emulator_dim thread, block, block_dim, grid_dim;
        uintptr_t stack;
    } now;
    /* Called before the running lane accesses bytes at p outside its stack. pc: program counter of the
     * access. */
    void (*access)(struct mf_emulator_calls *e, const void *p, uint32_t bytes, int kind, const void *pc);
    void (*barrier)(struct mf_emulator_calls *e); /* barrier for all lanes of the block */
    /* A collective call, made by all lanes of the wave with the same name. The last lane to arrive runs `all`
     * on the `mine` pointers of all lanes. If `all` is NULL, the call only synchronises the wave and orders
     * its LDS accesses. */
    void (*wave_collective)(struct mf_emulator_calls *e, const char *name, void *mine,
                            void (*all)(void **lanes), const void *pc);
    /* Starts an asynchronous copy that writes `bytes` bytes to LDS: `read` bytes from global memory, then
     * zeros. The copy completes when the lane calls copy_wait for the copy's group. */
    void (*copy)(struct mf_emulator_calls *e, void *lds, const void *global, uint32_t bytes, uint32_t read,
                 const void *pc);
    void (*copy_commit)(struct mf_emulator_calls *e);
    void (*copy_wait)(struct mf_emulator_calls *e, uint32_t groups);
    void (*pause)(struct mf_emulator_calls *e); /* lets other blocks run */
    uint64_t (*clock_ns)(struct mf_emulator_calls *e);
};

/* Calls a kernel on one lane with its argument block. */
typedef void (*mf_emulator_call_fn)(const void *arguments);
struct mf_emulator_kernel {
    const char *name;
    mf_emulator_call_fn call;
    uint64_t bytes; /* length of the argument block */
};

/* Symbols that the shared object exports: mf_emulator_bind stores the table, mf_emulator_kernels lists the
 * kernels and ends with an entry without a name, mf_emulator_lds returns the address of the launch's LDS
 * (MF_EMULATOR_LDS bytes). */
typedef void (*mf_emulator_bind_fn)(struct mf_emulator_calls *e);
typedef void *(*mf_emulator_lds_fn)(void);
