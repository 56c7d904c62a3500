/* aiter-lists FOLDER VERSION: prints the kernel lists of an AITER source tree, for kernels/aiter/lists.txt.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "kernels/aiter/aiter_lists.h"

int main(int argc, char **argv)
{
    _cleanup_(mf_buf_release) struct mf_buf lists;
    char why[MF_REASON_MAX];

    mf_buf_init(&lists, MF_AITER_LISTS_MAX);
    if (argc != 3) {
        (void)fprintf(stderr, "usage: aiter-lists FOLDER VERSION\n");
        return 2;
    }
    if (mf_aiter_tree_read(argv[1], &lists, why) < 0) {
        (void)fprintf(stderr, "aiter-lists: %s\n", why);
        return 1;
    }
    printf("# Kernel lists of ROCm/aiter, written by aiter-lists (kernels/aiter/aiter_lists.h): names and "
           "sizes\n"
           "version %s\n",
           argv[2]);
    (void)fputs(lists.data + strcspn(lists.data, "\n") + 1, stdout);
    return 0;
}
