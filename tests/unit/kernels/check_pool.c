/* The thread pool: each call runs every thread once, barriers work, and successive calls work whether the
 * threads sleep or spin. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/cpus.h"
#include "kernels/core/device.h"
#include "support/mf_check.h"

struct count {
    atomic_int ran[1024];
    atomic_int seen_n;
};

static void count_me(void *context, int thread, int n_threads)
{
    struct count *c = context;

    atomic_fetch_add(&c->ran[thread], 1);
    atomic_store(&c->seen_n, n_threads);
}

MF_TEST(test_few_elements_take_one_thread)
{
    ck_assert_int_eq(mf_pool_threads_for(0), 1);
    ck_assert_int_eq(mf_pool_threads_for(1000), 1);
    ck_assert_int_eq(mf_pool_threads_for(INT64_C(1) << 40), mf_pool_threads());
}

MF_TEST(test_each_thread_once)
{
    static struct count c;
    int most = mf_pool_threads();

    ck_assert_int_ge(most, 1);
    for (int n = 1; n <= most + 1; n++) {
        int runs = n < most ? n : most;
        memset(&c, 0, sizeof(c));
        for (int call = 1; call <= 2000; call++)
            mf_pool_run(count_me, &c, n);
        ck_assert_int_eq(atomic_load(&c.seen_n), runs);
        for (int t = 0; t < most + 1; t++)
            ck_assert_int_eq(atomic_load(&c.ran[t]), t < runs ? 2000 : 0);
    }
}

/* Adds to memory that is not atomic. The writes of one call must be visible to the next call and to the
 * caller. */
static void add_up(void *context, int thread, int n_threads)
{
    long *values = context;

    values[thread * 8] += thread + n_threads;
}

MF_TEST(test_memory_is_ordered)
{
    static long values[1024 * 8];
    int n = mf_pool_threads();

    memset(values, 0, sizeof(values));
    for (long call = 1; call <= 5000; call++) {
        mf_pool_run(add_up, values, n);
        for (int t = 0; t < n; t++)
            if (values[t * 8] != call * (t + n))
                ck_abort_msg("thread %d has %ld after call %ld", t, values[t * 8], call);
    }
}

struct phases {
    long value[1024 * 8];
    atomic_int wrong;
};

/* In every phase each thread reads what its neighbour wrote in the previous phase. */
static void run_phases(void *context, int thread, int n_threads)
{
    struct phases *p = context;
    int next = (thread + 1) % n_threads;

    for (long phase = 1; phase <= 200; phase++) {
        p->value[thread * 8] = phase;
        mf_pool_barrier();
        if (p->value[next * 8] != phase)
            atomic_fetch_add(&p->wrong, 1);
        mf_pool_barrier();
    }
}

MF_TEST(test_barrier)
{
    static struct phases p;

    for (int n = 1; n <= mf_pool_threads(); n++) {
        memset(&p, 0, sizeof(p));
        for (int call = 0; call < 20; call++)
            mf_pool_run(run_phases, &p, n);
        ck_assert_int_eq(atomic_load(&p.wrong), 0);
    }
}

/* A call wakes sleeping threads. The pauses between calls grow beyond the time for which threads spin. */
MF_TEST(test_after_sleep)
{
    static struct count c;
    struct timespec pause = {.tv_nsec = 10000};
    int n = mf_pool_threads(), calls = 0;

    memset(&c, 0, sizeof(c));
    for (; pause.tv_nsec < 3000000; pause.tv_nsec += pause.tv_nsec / 2) {
        (void)nanosleep(&pause, NULL);
        mf_pool_run(count_me, &c, n);
        calls++;
    }
    for (int t = 0; t < n; t++)
        ck_assert_int_eq(atomic_load(&c.ran[t]), calls);
}

/* A forked child has only the calling thread, so the pool creates new threads there. */
MF_TEST(test_after_fork)
{
    static struct count c;
    int status, n = mf_pool_threads();

    memset(&c, 0, sizeof(c));
    mf_pool_run(count_me, &c, n);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        (void)alarm(20);
        for (int i = 0; i < 100; i++)
            mf_pool_run(count_me, &c, n);
        _exit(atomic_load(&c.ran[n - 1]) == 101 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The caller's affinity is unchanged. */
MF_TEST(test_affinity)
{
    static struct count c;
    cpu_set_t before, after;

    memset(&c, 0, sizeof(c));
    ck_assert_int_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    for (int i = 0; i < 100; i++)
        mf_pool_run(count_me, &c, mf_pool_threads());
    ck_assert_int_eq(sched_getaffinity(0, sizeof(after), &after), 0);
    ck_assert(CPU_EQUAL(&before, &after));
}

/* mf_cpus_allowed counts the CPUs that the process may use at each call. The pool fixes its number of threads
 * at the first call. */
MF_TEST(test_allowed_cpus)
{
    cpu_set_t all, one;
    int c = 0;

    ck_assert_int_eq(sched_getaffinity(0, sizeof(all), &all), 0);
    ck_assert_int_eq(mf_cpus_allowed(), CPU_COUNT(&all));
    while (!CPU_ISSET(c, &all))
        c++;
    CPU_ZERO(&one);
    CPU_SET(c, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_int_eq(mf_cpus_allowed(), 1);
    ck_assert_int_eq(mf_pool_threads(), 1);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(all), &all), 0);
    ck_assert_int_eq(mf_cpus_allowed(), CPU_COUNT(&all));
    ck_assert_int_eq(mf_pool_threads(), 1);
}

int main(void)
{
    return mf_check_main(&(struct mf_test_group){.timeout_s = 60});
}
