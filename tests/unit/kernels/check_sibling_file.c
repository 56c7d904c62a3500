/* Tests which files next to a program are accepted. The program under test is a copy of this test, which
 * prints the file that it finds. Root can give files to other users; otherwise these cases are skipped. */
#include "kernels/core/sibling_file.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/text.h"
#include "support/mf_check.h"
#include "support/remove_tree.h"
#include "support/run_program.h"
#include "support/text_file.h"

#define FILE_NAME "wanted"
#define OTHER     4321 /* users that need not exist */
#define STRANGER  4322
#define ME        (-1)

static char folder[64];

static void make_folder(void)
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    char to[128];

    ck_assert_int_gt(n, 0);
    program[n] = '\0';
    mf_format(folder, sizeof(folder), "/tmp/check_sibling_file.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    mf_format(to, sizeof(to), "%s/program", folder);
    ck_assert_int_eq(
        run_program((const char *const[]){"cp", program, to, NULL}, (const char *const[]){NULL}).code, 0);
}

static void remove_folder(void)
{
    ck_assert_int_eq(remove_tree(folder), 0);
}

static void own(const char *file, int owner, mode_t mode)
{
    char path[128];

    mf_format(path, sizeof(path), "%s/%s", folder, file);
    ck_assert_int_eq(chown(path, owner == ME ? getuid() : (uid_t)owner, (gid_t)-1), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void make_file(const char *file)
{
    char path[128];

    mf_format(path, sizeof(path), "%s/%s", folder, file);
    text_file_write(path, "");
}

static struct ran find(void)
{
    char program[128];

    mf_format(program, sizeof(program), "%s/program", folder);
    return run_program((const char *const[]){program, "find", NULL}, (const char *const[]){NULL});
}

static const struct {
    int program, file; /* owners */
    mode_t program_mode, mode;
    bool accepted;
} files[] = {
    {ME, ME, 0755, 0644, true},           /* everything belongs to the user */
    {ME, ME, 0755, 0646, false},          /* everybody can change the file */
    {OTHER, OTHER, 0755, 0644, true},     /* an environment of another user */
    {OTHER, ME, 0755, 0644, true},        /* the user's file in such an environment */
    {OTHER, STRANGER, 0755, 0644, false}, /* a third user's file */
    {ME, OTHER, 0755, 0644, false},       /* another user's file next to the user's program */
    {OTHER, OTHER, 0757, 0644, false},    /* everybody can change the program, so its owner proves nothing */
};

static const struct mf_test_group owners = {
    .name = "owners", .setup = make_folder, .teardown = remove_folder, .optional = true};

MF_TEST(checks_the_owner, .rows = MF_ARRAY_LEN(files), .group = &owners)
{
    if (geteuid() != 0 && (files[_i].program != ME || files[_i].file != ME)) {
        mf_check_skip("only root can give files to other users");
        return;
    }
    make_file(FILE_NAME);
    own(FILE_NAME, files[_i].file, files[_i].mode);
    own("program", files[_i].program, files[_i].program_mode);
    struct ran r = find();
    ck_assert_int_eq(r.code, files[_i].accepted ? 0 : 1);
    if (files[_i].accepted)
        assert_says(r, folder);
}

MF_TEST(finds_nothing)
{
    ck_assert_int_eq(find().code, 1);
}

static int print_file(void)
{
    char path[PATH_MAX];
    int r = mf_sibling_file(FILE_NAME, "none", path);

    (void)puts(r == 0 ? path : strerror(-r));
    return r < 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "find") == 0)
        return print_file();
    return mf_check_main(&(struct mf_test_group){.setup = make_folder, .teardown = remove_folder});
}
