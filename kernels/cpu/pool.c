/* Thread pool of the CPU device. Jobs are published through an atomic epoch. Workers wait for a job first by
 * spinning and then in a futex.
 *
 * `epoch` counts jobs and holds the job's thread count in its low bits. A worker whose number is not below
 * that count keeps waiting and reads nothing else. Every other worker runs its part and decrements `left`.
 * The caller waits until `left` is 0, so fn and context stay valid while workers read them.
 *
 * A worker spins for SPIN_US after its last job and then sleeps on the epoch. Publishing a job wakes only
 * sleeping workers, so closely spaced calls make no system calls. No wake-up is lost, because a worker sets
 * `asleep` before FUTEX_WAIT atomically compares the epoch, and the caller changes the epoch before reading
 * `asleep`. Both accesses to `asleep` are sequentially consistent. */
#include "kernels/core/device.h"

#include "kernels/cpu/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ONE_THREAD_ELEMENTS  65536
#define SPIN_US              300
#define SPINS_PER_CLOCK_READ 256 /* pauses between two clock readings */
#define THREADS_MAX          1024
#define THREAD_BITS          11 /* low bits of the epoch that hold the thread count, up to THREADS_MAX */
/* pauses in a spin loop before sched_yield, because the thread that is waited for may need this core */
#define SPINS_YIELD 20000

struct pool {
    _Alignas(64) atomic_uint epoch;
    _Alignas(64) atomic_int left; /* workers that have not finished the running job */
    _Alignas(64) atomic_uint barrier_generation;
    _Alignas(64) atomic_int barrier_arrived;
    mf_pool_fn fn;
    void *context;
    int n_job; /* threads of the running job */
    int n_threads;
    int cpus[THREADS_MAX];
    struct {
        _Alignas(64) atomic_bool asleep;
    } worker[THREADS_MAX];
};

/* One pool per process; see device.h. */
static struct pool pool;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static pthread_once_t cpus_once = PTHREAD_ONCE_INIT;
static atomic_bool pool_started;

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void find_cpus(void)
{
    cpu_set_t set;

    pool.n_threads = 0;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int c = 0; c < CPU_SETSIZE && pool.n_threads < THREADS_MAX; c++) {
            if (CPU_ISSET(c, &set))
                pool.cpus[pool.n_threads++] = c;
        }
    }
    if (pool.n_threads == 0) {
        pool.n_threads = 1;
        pool.cpus[0] = -1; /* unknown core: the thread is not pinned */
    }
}

static unsigned bit_of(int worker)
{
    return 1u << (worker % 32);
}

static void sleep_on_epoch(int me, unsigned seen)
{
    atomic_store(&pool.worker[me].asleep, true);
    (void)syscall(SYS_futex, &pool.epoch, FUTEX_WAIT_BITSET_PRIVATE, seen, NULL, NULL, bit_of(me));
    atomic_store(&pool.worker[me].asleep, false);
}

static void wake_sleepers(int n)
{
    unsigned bits = 0;

    for (int i = 1; i < n; i++) {
        if (atomic_load(&pool.worker[i].asleep))
            bits |= bit_of(i);
    }
    if (bits)
        (void)syscall(SYS_futex, &pool.epoch, FUTEX_WAKE_BITSET_PRIVATE, INT32_MAX, NULL, NULL, bits);
}

static unsigned wait_for_change(int me, unsigned seen)
{
    for (;;) {
        int64_t until = now_us() + SPIN_US;
        do {
            for (int i = 0; i < SPINS_PER_CLOCK_READ; i++) {
                unsigned e = atomic_load_explicit(&pool.epoch, memory_order_acquire);
                if (e != seen)
                    return e;
                pause_core();
            }
        } while (now_us() < until);
        sleep_on_epoch(me, seen);
    }
}

static void pin(int cpu)
{
    cpu_set_t set;

    if (cpu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

static void *worker_main(void *argument)
{
    int me = (int)(intptr_t)argument;
    unsigned seen = 0;

    pin(pool.cpus[me]);
    for (;;) {
        seen = wait_for_change(me, seen);
        int n = (int)(seen & ((1u << THREAD_BITS) - 1));
        if (me >= n)
            continue;
        pool.fn(pool.context, me, n);
        atomic_fetch_sub_explicit(&pool.left, 1, memory_order_release);
    }
    return NULL;
}

static void start_workers(void)
{
    int started = 1;
    sigset_t all, before;

    /* Block all signals in pool threads, so that none of them takes a signal for which a thread of the
     * program waits. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < pool.n_threads; i++, started++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker_main, (void *)(intptr_t)i) != 0)
            break;
        (void)pthread_detach(thread);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    pool.n_threads = started; /* with fewer threads, jobs are slower but correct */
    atomic_store(&pool_started, true);
}

/* After a fork the child has only the calling thread, so it starts its own workers on first use. */
static void after_fork(void)
{
    static const pthread_once_t fresh = PTHREAD_ONCE_INIT;

    pool_once = fresh;
    atomic_store(&pool_started, false);
    atomic_store(&pool.epoch, 0);
    atomic_store(&pool.left, 0);
    atomic_store(&pool.barrier_arrived, 0);
    for (int i = 0; i < pool.n_threads; i++)
        atomic_store(&pool.worker[i].asleep, false);
}

static void find_cpus_and_watch_forks(void)
{
    find_cpus();
    (void)pthread_atfork(NULL, NULL, after_fork);
}

int mf_pool_threads(void)
{
    if (!atomic_load_explicit(&pool_started, memory_order_acquire)) {
        /* done once per process, so later changes of the affinity have no effect */
        (void)pthread_once(&cpus_once, find_cpus_and_watch_forks);
        (void)pthread_once(&pool_once, start_workers);
    }
    return pool.n_threads;
}

int mf_pool_threads_for(int64_t elements)
{
    return elements < ONE_THREAD_ELEMENTS ? 1 : mf_pool_threads();
}

void mf_pool_pin_caller(cpu_set_t *ret_before)
{
    (void)mf_pool_threads();
    if (sched_getaffinity(0, sizeof(*ret_before), ret_before) < 0)
        CPU_ZERO(ret_before);
    pin(pool.cpus[0]);
}

/* Moves the caller to core 0 of the pool without pinning it. If the caller stayed on the core of a worker,
 * the two threads could not run in parallel. */
static void move_to_core_0(void)
{
    cpu_set_t before;
    int here = sched_getcpu();

    if (here < 0 || pool.cpus[0] < 0 || here == pool.cpus[0])
        return;
    mf_pool_pin_caller(&before);
    if (CPU_COUNT(&before) > 0)
        (void)sched_setaffinity(0, sizeof(before), &before);
}

static void spin_while(const atomic_int *value)
{
    for (int spins = 0; atomic_load_explicit(value, memory_order_acquire) != 0; spins++) {
        if (spins >= SPINS_YIELD) {
            (void)sched_yield();
            spins = 0;
        }
        pause_core();
    }
}

void mf_pool_run(mf_pool_fn fn, void *context, int n_threads)
{
    int threads = n_threads > 1 ? mf_pool_threads() : 1;
    int n = n_threads < threads ? n_threads : threads;

    if (n <= 1) {
        pool.n_job = 1;
        fn(context, 0, 1);
        return;
    }
    move_to_core_0();
    pool.fn = fn;
    pool.context = context;
    pool.n_job = n;
    atomic_store_explicit(&pool.left, n - 1, memory_order_relaxed);
    unsigned jobs = atomic_load_explicit(&pool.epoch, memory_order_relaxed) >> THREAD_BITS;
    atomic_store(&pool.epoch, (jobs + 1) << THREAD_BITS | (unsigned)n);
    wake_sleepers(n);
    fn(context, 0, n);
    spin_while(&pool.left);
}

void mf_pool_barrier(void)
{
    int n = pool.n_job;
    unsigned generation = atomic_load_explicit(&pool.barrier_generation, memory_order_acquire);

    if (n <= 1)
        return;
    if (atomic_fetch_add_explicit(&pool.barrier_arrived, 1, memory_order_acq_rel) == n - 1) {
        atomic_store_explicit(&pool.barrier_arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&pool.barrier_generation, generation + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&pool.barrier_generation, memory_order_acquire) == generation;
         spins++) {
        if (spins >= SPINS_YIELD) {
            (void)sched_yield();
            spins = 0;
        }
        pause_core();
    }
}

static void empty_job(void *context, int thread, int n_threads)
{
    (void)context;
    (void)thread;
    (void)n_threads;
}

void mf_pool_wake(void)
{
    mf_pool_run(empty_job, NULL, mf_pool_threads());
}
