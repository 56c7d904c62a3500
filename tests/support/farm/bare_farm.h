/* A farm with a database of its own and nothing else: no threads, no workers. The test calls the functions of
 * the writer itself. */
#pragma once

#include "server/farm/farm_private.h"

#include "support/mf_check.h"
#include "support/remove_tree.h"

#include <stdio.h>
#include <stdlib.h>

static char bare_farm_folder[64];

static inline void bare_farm_open(struct mf_farm *ret)
{
    char path[100];
    (void)snprintf(bare_farm_folder, sizeof(bare_farm_folder), "/tmp/check_farm.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(bare_farm_folder));
    (void)snprintf(path, sizeof(path), "%s/farm.db", bare_farm_folder);
    *ret = (struct mf_farm){.wall_ms = 1000};
    ck_assert_int_eq(mf_store_open(path, &ret->store), 0);
}

static inline void bare_farm_close(struct mf_farm *f)
{
    mf_farm_reset_state(f);
    free(f->touched);
    free(f->new_events);
    mf_ids_release(&f->to_rank);
    mf_ids_release(&f->to_race);
    f->store = mf_store_free(f->store);
    ck_assert_int_eq(remove_tree(bare_farm_folder), 0);
}
