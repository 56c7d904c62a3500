/* worker/agent/journal.c: what a worker had in hand is found by its successor, however the file ended. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/base/cleanup.h"
#include "common/base/json.h"
#include "support/farm/die_at.h"
#include "support/mf_check.h"
#include "support/no_memory.h"
#include "worker/agent/journal.h"
#include "worker/agent/record.h"

#define LONG_BYTES (64 << 10) /* of a unit, as one of a thousand steps has */

static char folder[64], path[96], beside[104];
static struct mf_journal journal;

static int room = -1; /* records that there is room for on the disk; -1: without end */
static char fails;    /* s: to sync a file, f: a folder, r: to rename */
static int n_renamed;

ssize_t __real_pwritev(int fd, const struct iovec *parts, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int n, off_t at);
ssize_t __wrap_pwritev(int fd, const struct iovec *parts, int n, off_t at)
{
    if (room == 0) {
        errno = ENOSPC;
        return -1;
    }
    room -= room > 0;
    return __real_pwritev(fd, parts, n, at);
}

static int refuse(char what)
{
    errno = EIO;
    return fails == what ? -1 : 0;
}

int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    return refuse(S_ISDIR(st.st_mode) ? 'f' : 's');
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    if (refuse('r') < 0)
        return -1;
    n_renamed++;
    return __real_rename(from, to);
}

static void setup(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/check_journal.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/w.units", folder);
    (void)snprintf(beside, sizeof(beside), "%s.new", path);
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

/* With a text so long in it. */
static void take_long(int unit, int bytes)
{
    _cleanup_(mf_freep) char *text = NULL;
    ck_assert_int_gt(asprintf(&text,
                              "{\"unit\":%d,\"attempt\":2,\"epoch\":3,\"kind\":\"probe\",\"text\":\"%0*d\"}",
                              unit, bytes, 0),
                     0);
    cJSON *body = cJSON_Parse(text);
    mf_journal_take(&journal, body, "cpu-x/2", "r1");
    cJSON_Delete(body);
}

static void take(int unit)
{
    take_long(unit, 1);
}

static int gone(int unit)
{
    return mf_journal_gone(&journal, unit, 2);
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
            mf_journal_retake(&journal, &journal.found[k]);
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
    room = 0;
    done(7, 1);
    room = -1;
    ck_assert_int_eq(size(), 0);
    (void)snprintf(other, sizeof(other), "%s/other", folder);
    int fd = open(other, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, text, sizeof(text)), sizeof(text));
    done(7, 2);
    take(8);
    ck_assert_int_eq(gone(7), 0);
    ck_assert_int_eq(gone(8), 0);
    succeed("second");
    ck_assert_int_eq(pread(fd, found, sizeof(found), 0), sizeof(found));
    ck_assert_str_eq(found, text);
    ck_assert_int_eq(close(fd), 0);
    ck_assert_str_eq(journal.predecessor, "");
    ck_assert_uint_eq(journal.n_found, 0);
    (void)unlink(other);
}
END_TEST

/* The next unit is there before the last one goes: there is never a moment without one. */
START_TEST(never_idle)
{
    const int n = 200;
    take_long(1, LONG_BYTES);
    for (int i = 2; i <= n; i++) {
        take_long(i, LONG_BYTES);
        done(i, 1);
        ck_assert_int_eq(gone(i - 1), 0);
        ck_assert_int_lt(size(), MF_JOURNAL_REWRITE_MIN + 2 * LONG_BYTES);
    }
    succeed("second");
    ck_assert_uint_eq(journal.n_found, 1);
    ck_assert_int_eq(journal.found[0].unit, n);
    ck_assert_uint_eq(journal.found[0].n_done, 1);
}
END_TEST

/* Much that is in hand is not written again with each little thing that is said of it. */
START_TEST(much_in_hand)
{
    const int n = MF_JOURNAL_REWRITE_MIN / LONG_BYTES * 3 / 2;
    for (int i = 1; i <= n; i++)
        take_long(i, LONG_BYTES);
    off_t live = size();
    ck_assert_int_gt(live, MF_JOURNAL_REWRITE_MIN);
    for (int i = 0; i < 1000; i++) {
        take(1000 + i);
        done(1, i);
        ck_assert_int_eq(gone(1000 + i), 0);
    }
    ck_assert_int_eq(n_renamed, 1);
    for (int i = 0; i < 10 * n; i++) {
        take_long(5000 + i, LONG_BYTES);
        ck_assert_int_eq(gone(5000 + i), 0);
        ck_assert_int_lt(size(), 3 * live);
    }
    ck_assert_int_gt(n_renamed, 1);
    ck_assert_int_le(n_renamed, 11); /* no more is written again than was written */
    succeed("second");
    ck_assert_uint_eq(journal.n_found, n);
    ck_assert_uint_eq(journal.found[0].n_done, 1000);
}
END_TEST

/* Units come and go until the file is rewritten, or that fails. */
static int fill(void)
{
    static int unit = 1000;
    int before = n_renamed, r = 0;
    for (int i = 0; r == 0 && n_renamed == before; i++) {
        ck_assert_int_lt(i, (16 << 20) / LONG_BYTES);
        take_long(++unit, LONG_BYTES);
        r = gone(unit);
    }
    return r;
}

/* A worker's successor goes on with all of it. */
static void go_on(struct mf_journal *j)
{
    for (size_t i = 0; i < j->n_found; i++)
        mf_journal_retake(j, &j->found[i]);
    ck_assert_int_eq(mf_journal_forget(j), 0);
}

/* t: a unit is taken, b: begun, d: something of it done, g: it goes; /: the instance falls, and the next one goes on. */
static const char *const lives[] = {
    "t7",
    "t7 t8 t5 t9 g8",
    "t7 d7 t8 d7 d8 t9 d9 g9",
    "t8 t7 d7 g7 t7 d7", /* once more: what was done before is not done now */
    "t7 d7 b7 t8 g7 t7",
    "t7 b7 / b7",
    "t7 b7 / b7 d7 / b7",
    "t7 t8 b7 / t9 b9 d9 g9 / b7", /* nothing is left of what the second said */
    "t7 t8 b7 / / / b8 / b7",
    "t7 b7 d7 / b7 b7 t8 / t9 / d8",
    "t7 / g7 t8 b8 / t7 b7",
};

static void live(const char *life)
{
    int seq = 0, n_instances = 1;
    char instance[24];
    for (const char *p = life; *p; p++) {
        int unit = p[1] >= '0' ? p[1] - '0' : 0;
        if (*p == 't')
            take(unit);
        if (*p == 'b')
            mf_journal_begun(&journal, unit, 2);
        if (*p == 'd')
            done(unit, ++seq);
        if (*p == 'g')
            ck_assert_int_eq(gone(unit), 0);
        if (*p == '/') {
            (void)snprintf(instance, sizeof(instance), "instance %d", ++n_instances);
            succeed(instance);
            go_on(&journal);
        }
    }
}

static void assert_same(const struct mf_journal *a, const struct mf_journal *b)
{
    ck_assert_str_eq(a->predecessor, b->predecessor);
    ck_assert_uint_eq(a->n_found, b->n_found);
    for (size_t i = 0; i < a->n_found; i++) {
        const struct mf_journal_unit *u = &a->found[i], *v = &b->found[i];
        ck_assert(cJSON_Compare(u->record, v->record, true));
        ck_assert_int_eq(u->n_fell, v->n_fell);
        ck_assert_uint_eq(u->n_done, v->n_done);
        for (size_t k = 0; k < u->n_done; k++) {
            ck_assert_int_eq(u->done[k].id, v->done[k].id);
            ck_assert_int_eq(u->done[k].seq, v->done[k].seq);
        }
    }
}

/* The old file keeps a second name: its successors find what those of the new one find, and so do theirs. */
START_TEST(tells_the_same)
{
    static const char *const instances[] = {"next", "after", "last"};
    char old[96];
    struct mf_journal other;
    live(lives[_i]);
    (void)snprintf(old, sizeof(old), "%s/v.units", folder);
    ck_assert_int_eq(link(path, old), 0);
    ck_assert_int_eq(fill(), 0);
    ck_assert_int_eq(fill(), 0); /* and once more what was rewritten */
    ck_assert_int_lt(size(), 1024);
    ck_assert_int_eq(mf_journal_open(folder, "v", instances[0], &other), 0);
    succeed(instances[0]);
    ck_assert_uint_gt(journal.n_found, 0);
    for (size_t i = 1;; i++) {
        assert_same(&journal, &other);
        if (i == MF_ARRAY_LEN(instances))
            break;
        int64_t first = journal.found[0].unit;
        go_on(&journal);
        go_on(&other);
        mf_journal_begun(&journal, first, 2);
        mf_journal_begun(&other, first, 2);
        mf_journal_release(&other);
        ck_assert_int_eq(mf_journal_open(folder, "v", instances[i], &other), 0);
        succeed(instances[i]);
    }
    mf_journal_release(&other);
    (void)unlink(old);
}
END_TEST

/* What fails while it is rewritten. Units of 5 MiB come and go meanwhile. */
/* clang-format off */
static const struct {
    char what;
    int result;
    int n_told;
} failures[] = {
    {'o', -EISDIR, 3}, /* the new file's name is taken; at 1, 2 and 4 MiB */
    {'w', -ENOSPC, 3}, /* it has its first record */
    {'m', -ENOMEM, 3},
    {'s', -EIO,    3},
    {'r', -EIO,    3},
    {'f', -EIO,    5}, /* the new one has the name, and each time it has a MiB */
};
/* clang-format on */

static int gone_while_it_fails(int unit, char what)
{
    room = what == 'w' ? 2 : -1; /* the first is the old file's */
    fails = what;
    if (what == 'm')
        lose_block(0);
    int r = gone(unit);
    lose_none();
    fails = '\0';
    room = -1;
    return r;
}

START_TEST(goes_on_where_that_fails)
{
    const char what = failures[_i].what;
    int n_told = 0;
    take(7);
    done(7, 1);
    ck_assert(what != 'o' || mkdir(beside, 0700) == 0);
    for (int i = 0; i < (5 << 20) / LONG_BYTES; i++) {
        take_long(100 + i, LONG_BYTES);
        int r = gone_while_it_fails(100 + i, what);
        ck_assert_int_eq(r, r == 0 ? 0 : failures[_i].result);
        n_told += r < 0;
    }
    ck_assert_int_eq(n_told, failures[_i].n_told);
    ck_assert(what != 'o' || rmdir(beside) == 0);
    ck_assert_int_lt(access(beside, F_OK), 0);
    done(7, 2);
    succeed("second");
    ck_assert_uint_eq(journal.n_found, 1);
    ck_assert_uint_eq(journal.found[0].n_done, 2);
    go_on(&journal);
    ck_assert_int_eq(fill(), 0);
    ck_assert_int_lt(size(), 1024);
    done(7, 3);
    succeed("third");
    ck_assert_uint_eq(journal.n_found, 1);
    ck_assert_uint_eq(journal.found[0].n_done, 3);
}
END_TEST

/* Killed around the rename: a successor finds the same in either file. */
START_TEST(survives_a_death_while_it_is_rewritten)
{
    take(7);
    done(7, 1);
    take(8);
    if (die_at(_i ? MF_FAULT_JOURNAL_RENAMED : MF_FAULT_JOURNAL_WRITTEN)) {
        (void)fill();
        _exit(1);
    }
    ck_assert_int_eq(size() < 1024, _i);
    succeed("second");
    ck_assert_str_eq(journal.predecessor, "first");
    ck_assert_uint_eq(journal.n_found, 2);
    ck_assert_int_eq(journal.found[0].unit, 7);
    ck_assert_uint_eq(journal.found[0].n_done, 1);
    ck_assert_int_eq(journal.found[1].unit, 8);
    go_on(&journal);
    if (size() > 1024) /* the old one was about to be rewritten */
        ck_assert_int_eq(fill(), 0);
    ck_assert_int_lt(size(), 1024);
    (void)unlink(beside);
}
END_TEST

/* On a disk where it can never be rewritten it ends, and the work goes on. */
START_TEST(ceiling)
{
    const int bytes = MF_RECORD_MAX / 8 * 7;
    take(7);
    ck_assert_int_eq(mkdir(beside, 0700), 0);
    off_t most = 0;
    for (int i = 0; size() > 0; i++) {
        most = MF_MAX(most, size());
        take_long(100 + i, bytes);
        (void)gone(100 + i);
    }
    ck_assert_int_gt(most, MF_JOURNAL_BYTES_MAX - MF_RECORD_MAX);
    ck_assert_int_le(most, MF_JOURNAL_BYTES_MAX);
    ck_assert_int_eq(rmdir(beside), 0);
    take(8);
    ck_assert_int_eq(gone(7), 0);
    ck_assert_int_eq(size(), 0);
    succeed("second");
    ck_assert_uint_eq(journal.n_found, 0);
    take(9);
    succeed("third");
    ck_assert_uint_eq(journal.n_found, 1);
}
END_TEST

/* One that grew beyond the ceiling before there was any is rewritten once it is known what of it is wanted, and goes on. */
START_TEST(found_beyond_the_ceiling)
{
    _cleanup_(mf_freep) char *blank = malloc(MF_RECORD_MAX);
    memset(blank, ' ', MF_RECORD_MAX);
    take(7);
    take(8);
    take(9);
    for (off_t at = size(); at <= MF_JOURNAL_BYTES_MAX; at += MF_RECORD_HEADER + MF_RECORD_MAX)
        ck_assert_int_eq(mf_record_write(journal.fd, "MFU1", blank, MF_RECORD_MAX, (uint64_t)at), 0);
    succeed("second");
    ck_assert_uint_eq(journal.n_found, 3);
    mf_journal_retake(&journal, &journal.found[0]);
    mf_journal_retake(&journal, &journal.found[1]);
    ck_assert_int_eq(gone(7), 0);
    ck_assert_int_eq(n_renamed, 0);
    mf_journal_retake(&journal, &journal.found[2]);
    ck_assert_int_eq(mf_journal_forget(&journal), 0);
    ck_assert_int_lt(size(), 1024);
    done(9, 1);
    succeed("third");
    ck_assert_str_eq(journal.predecessor, "second");
    ck_assert_uint_eq(journal.n_found, 2);
    ck_assert_int_eq(journal.found[0].unit, 8);
    ck_assert_int_eq(journal.found[1].unit, 9);
    ck_assert_uint_eq(journal.found[1].n_done, 1);
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
    TCase *large = tcase_create("rewritten");
    tcase_add_checked_fixture(large, setup, teardown);
    tcase_add_test(large, never_idle);
    tcase_add_test(large, much_in_hand);
    tcase_add_loop_test(large, tells_the_same, 0, (int)MF_ARRAY_LEN(lives));
    tcase_add_loop_test(large, goes_on_where_that_fails, 0, (int)MF_ARRAY_LEN(failures));
    tcase_add_loop_test(large, survives_a_death_while_it_is_rewritten, 0, 2);
    tcase_add_test(large, ceiling);
    tcase_add_test(large, found_beyond_the_ceiling);
    tcase_set_timeout(large, 60);
    suite_add_tcase(suite, large);
    return mf_check_main(suite);
}
