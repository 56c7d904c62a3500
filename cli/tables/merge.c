#include "cli/tables/merge.h"

#include <stdio.h>
#include <string.h>

#include "cli/support/cli.h"
#include "common/table/table_file.h"

void mf_merge_set_release(struct mf_merge_set *set)
{
    for (size_t i = 0; i < set->n; i++)
        mf_table_free(set->tables[i]);
    set->n = 0;
}

int mf_merge_set_read(const char *list, struct mf_merge_set *set)
{
    while (list && *list) {
        size_t len = strcspn(list, ",");
        char path[4096], why[MF_REASON_MAX] = "";

        if (len >= sizeof(path) || set->n == MF_MERGE_SET_MAX)
            return mf_cli_fail(
                MF_EXIT_USAGE,
                "--set '%.200s': expected at most %d paths of at most %zu bytes each, separated by "
                "commas",
                list, MF_MERGE_SET_MAX, sizeof(path) - 1);
        memcpy(path, list, len);
        path[len] = '\0';
        if (len > 0 && mf_table_file_read(path, &set->tables[set->n], why) < 0)
            return mf_cli_fail(MF_EXIT_USAGE, "--set: %s", why);
        set->n += len > 0;
        list += len + (list[len] == ',');
    }
    return 0;
}

void mf_merge_set_use(const struct mf_merge_set *set, struct mf_merge_options *options)
{
    options->set = (const struct mf_table *const *)set->tables;
    options->n_set = set->n;
}

void mf_merge_print(const struct mf_merge_result *result)
{
    for (size_t i = 0; i < result->n_items; i++) {
        const struct mf_merge_item *item = &result->items[i];

        printf("%-8s  %s  %.4f us", mf_merged_name(item->what), item->key, item->new_us);
        if (item->what != MF_MERGED_ADDED)
            printf(" (was %.4f us)", item->old_us);
        if (item->reason[0])
            printf(": %s", item->reason);
        printf("\n");
    }
}

void mf_merge_print_sum(const struct mf_merge_result *result)
{
    printf("%zu added, %zu replaced, %zu kept, %zu foreign\n", result->n[MF_MERGED_ADDED],
           result->n[MF_MERGED_REPLACED], result->n[MF_MERGED_KEPT], result->n[MF_MERGED_FOREIGN]);
}
