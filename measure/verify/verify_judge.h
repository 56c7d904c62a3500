/* Applies the gates to inspected rows: poison, finite, mismatch ratio, worst expert, worst row
 * (measure/verify/verify.h). */
#pragma once

#include "measure/verify/verify_row.h"

/* `rows` holds all rows of the output as filled by mf_verify_row_inspect; this function fills their members
 * `error` and `limit`. cols is the number of values per row. If written_only is true, applies only the poison
 * gate. Returns 0, 1 with a reason, or -ENOMEM. */
int mf_verify_judge(const struct mf_verify_input *v, struct mf_verify_row *rows, int64_t cols,
                    bool written_only, struct mf_verdict *ret);

/* Writes the name of a row, for example "row 1033 (token 129, slot 1, expert 7)". */
void mf_verify_name_row(const struct mf_verify_input *v, int64_t p, int64_t source, char *buf, size_t cap);
