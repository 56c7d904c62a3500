#include "emulator/fiber.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

/* rdi: where to save the current stack pointer; rsi: stack pointer to resume. Callee-saved registers are
 * saved on the stack. */
__asm__(".text\n"
        ".type mf_fiber_swap, @function\n"
        "mf_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size mf_fiber_swap, . - mf_fiber_swap\n"
        ".type mf_fiber_enter, @function\n"
        "mf_fiber_enter:\n" /* first return of a new fiber: r12 holds fn, r13 its argument */
        "    movq %r13, %rdi\n"
        "    callq *%r12\n"
        "    ud2\n"
        ".size mf_fiber_enter, . - mf_fiber_enter\n");

void mf_fiber_swap(void **from, void *to);
void mf_fiber_enter(void);

void mf_fiber_start(struct mf_fiber *f, void *stack, size_t bytes, mf_fiber_fn fn, void *argument)
{
    uintptr_t *top = (uintptr_t *)((uintptr_t)((char *)stack + bytes) / 16 * 16);

    /* The stack holds r15, r14, r13, r12, rbx, rbp and the return address. Above these values, the stack is
     * aligned for a call. */
    top -= 7;
    memset(top, 0, 7 * sizeof(*top));
    top[2] = (uintptr_t)argument;
    top[3] = (uintptr_t)fn;
    top[6] = (uintptr_t)mf_fiber_enter;
    f->at = top;
}

void mf_fiber_switch(struct mf_fiber *from, struct mf_fiber *to)
{
    mf_fiber_swap(&from->at, to->at);
}

#else

#    include <ucontext.h>

/* The context of a fiber lies at the top of its stack. The context of the thread that first switches to a
 * fiber lies in that thread's own frame. */
struct start {
    ucontext_t context;
    mf_fiber_fn fn;
    void *argument;
};

static void enter(unsigned high, unsigned low)
{
    const struct start *s = (const struct start *)((uintptr_t)((uint64_t)high << 32 | low));
    s->fn(s->argument);
}

void mf_fiber_start(struct mf_fiber *f, void *stack, size_t bytes, mf_fiber_fn fn, void *argument)
{
    struct start *s = (struct start *)(((uintptr_t)stack + bytes - sizeof(*s)) / 64 * 64);
    (void)getcontext(&s->context);
    s->fn = fn;
    s->argument = argument;
    s->context.uc_stack.ss_sp = stack;
    s->context.uc_stack.ss_size = (size_t)((char *)s - (char *)stack);
    makecontext(&s->context, (void (*)(void))enter, 2, (unsigned)((uint64_t)(uintptr_t)s >> 32),
                (unsigned)(uintptr_t)s);
    f->at = &s->context;
}

void mf_fiber_switch(struct mf_fiber *from, struct mf_fiber *to)
{
    ucontext_t here;
    ucontext_t *next = to->at;
    from->at = &here;
    (void)swapcontext(&here, next);
}

#endif
