/* worker/journal.c: what a worker had in hand is found by its successor, however the file ended. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/json.h"
#include "mf_check.h"
#include "no_memory.h"
#include "worker/journal.h"

static char folder[64], path[96];
static struct mf_journal journal;

/* Does the disk have no room for another record? */
static bool full;

ssize_t __real_pwritev(int fd, const struct iovec *parts, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    if (!full)
        return __real_pwritev(fd, parts, n, at);
    errno = ENOSPC;
    return -1;
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_journal.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/w.units", folder);
    ck_assert_int_eq(mf_journal_open(folder, "w", "first", &journal), 0);
}

static void teardown(void)
{
    mf_journal_release(&journal);
    (void)unlink(path);
    (void)rmdir(folder);
}

static off_t size(void)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

static void take(int unit)
{
    char text[80];
    (void)snprintf(text, sizeof(text), "{\"unit\":%d,\"attempt\":2,\"epoch\":3,\"kind\":\"probe\"}", unit);
    cJSON *body = cJSON_Parse(text);
    mf_journal_take(&journal, body, "cpu-x/2", "r1");
    cJSON_Delete(body);
}

static void done(int unit, int seq)
{
    mf_journal_done(&journal, unit, 2, (struct mf_journal_item){.id = 100 + seq, .seq = seq});
}

/* A death without a word, and another process. */
static void succeed(const char *instance)
{
    mf_journal_release(&journal);
    ck_assert_int_eq(mf_journal_open(folder, "w", instance, &journal), 0);
}

START_TEST(nothing_in_hand)
{
    ck_assert_str_eq(journal.predecessor, "");
    off_t empty = size();
    take(7);
    done(7, 1);
    mf_journal_gone(&journal, 7, 2);
    ck_assert_int_eq(size(), empty); /* it does not grow with the farm's age */
    succeed("second");
    ck_assert_str_eq(journal.predecessor, "first");
    ck_assert_uint_eq(journal.n_found, 0);
}
END_TEST

START_TEST(units_in_hand)
{
    take(7);
    take(8);
    done(7, 1);
    done(7, 2);
    take(9);
    mf_journal_gone(&journal, 8, 2);
    done(9, 1);
    succeed("second");
    ck_assert_uint_eq(journal.n_found, 2);
    const struct mf_journal_unit *seven = &journal.found[journal.found[0].unit == 9],
                                 *nine = &journal.found[journal.found[0].unit == 7];
    ck_assert_int_eq(seven->unit, 7);
    ck_assert_int_eq(seven->attempt, 2);
    ck_assert_str_eq(seven->class, "cpu-x/2");
    ck_assert_str_eq(seven->revision, "r1");
    ck_assert_int_eq(seven->n_fell, 1);
    int64_t epoch = 0;
    ck_assert_int_eq(mf_json_i64(seven->body, "epoch", 0, 10, &epoch), 0);
    ck_assert_int_eq(epoch, 3);
    ck_assert_uint_eq(seven->n_done, 2);
    ck_assert_int_eq(seven->done[1].id, 102);
    ck_assert_int_eq(seven->done[1].seq, 2);
    ck_assert_uint_eq(nine->n_done, 1);
    /* What is not taken up is out of hand */
    mf_journal_forget(&journal);
    succeed("third");
    ck_assert_str_eq(journal.predecessor, "second");
    ck_assert_uint_eq(journal.n_found, 0);
}
END_TEST

/* A successor that has no memory to read it takes nothing out of it. */
START_TEST(survives_want_of_memory)
{
    take(7);
    done(7, 1);
    take(8);
    mf_journal_release(&journal);
    off_t before = size();
    int r = -ENOMEM, n = 0;
    for (; r < 0; n++) {
        lose_block(n);
        r = mf_journal_open(folder, "w", "second", &journal);
        lose_none();
        ck_assert(r == 0 || r == -ENOMEM);
        ck_assert(r == 0 || size() == before);
    }
    ck_assert_int_gt(n, 10); /* a record's values and their names */
    ck_assert_str_eq(journal.predecessor, "first");
    ck_assert_uint_eq(journal.n_found, 2);
    ck_assert_uint_eq(journal.found[0].n_done + journal.found[1].n_done, 1);
}
END_TEST

/* Of two units in hand each instance works on the first, and falls. */
START_TEST(what_workers_fall_at)
{
    static const char *const instances[] = {"second", "third", "fourth", "fifth"};
    static const struct {
        bool done;      /* something of the first, before the fall */
        int fell_at[2]; /* what the next instance reads */
    } falls[] = {{true, {1, 0}}, {false, {2, 0}}, {true, {1, 0}}, {true, {1, 0}}};

    take(7);
    take(8);
    for (size_t i = 0; i < MF_ARRAY_LEN(falls); i++) {
        mf_journal_begun(&journal, 7, 2);
        mf_journal_begun(&journal, 7, 2); /* its runner died, and another was asked */
        if (falls[i].done)
            done(7, (int)i);
        succeed(instances[i]);
        ck_assert_uint_eq(journal.n_found, 2);
        for (int k = 0; k < 2; k++) {
            ck_assert_int_eq(journal.found[k].unit, 7 + k);
            ck_assert_int_eq(journal.found[k].n_fell, falls[i].fell_at[k]);
            mf_journal_retake(&journal);
        }
        mf_journal_forget(&journal);
    }
}
END_TEST

/* Cut at every byte: never a failure, never more than was written, and it goes on from there. */
START_TEST(torn_anywhere)
{
    take(7);
    off_t with_unit = size();
    done(7, 1);
    off_t whole = size();
    char bytes[1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(read(fd, bytes, sizeof(bytes)), whole);
    (void)close(fd);
    for (off_t cut = 0; cut <= whole; cut++) {
        mf_journal_release(&journal);
        fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
        ck_assert_int_eq(write(fd, bytes, (size_t)cut), cut);
        (void)close(fd);
        ck_assert_int_eq(mf_journal_open(folder, "w", "next", &journal), 0);
        ck_assert_uint_eq(journal.n_found, cut >= with_unit);
        if (cut >= with_unit)
            ck_assert_uint_eq(journal.found[0].n_done, cut == whole);
        done(7, 5);
        succeed("after");
        ck_assert_str_eq(journal.predecessor, "next");
        if (cut >= with_unit)
            ck_assert_uint_eq(journal.found[0].n_done, 1u + (cut == whole));
    }
}
END_TEST

/* One that has failed writes nowhere any more: the number of its descriptor is soon that of another file. */
START_TEST(a_failed_one_lets_go)
{
    static const char text[] = "of somebody else";
    char found[sizeof(text)] = "", other[128];
    take(7);
    full = true;
    done(7, 1);
    full = false;
    ck_assert_int_eq(size(), 0);
    (void)snprintf(other, sizeof(other), "%s/other", folder);
    int fd = open(other, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, text, sizeof(text)), sizeof(text));
    done(7, 2);
    take(8);
    mf_journal_gone(&journal, 7, 2);
    mf_journal_gone(&journal, 8, 2);
    succeed("second");
    ck_assert_int_eq(pread(fd, found, sizeof(found), 0), sizeof(found));
    ck_assert_str_eq(found, text);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_str_eq(journal.predecessor, "");
    ck_assert_uint_eq(journal.n_found, 0);
    (void)unlink(other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("journal");
    TCase *tc = tcase_create("journal");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, nothing_in_hand);
    tcase_add_test(tc, units_in_hand);
    tcase_add_test(tc, survives_want_of_memory);
    tcase_add_test(tc, what_workers_fall_at);
    tcase_add_test(tc, torn_anywhere);
    tcase_add_test(tc, a_failed_one_lets_go);
    suite_add_tcase(suite, tc);
    return mf_check_main(suite);
}
