/* The gates on what was seen of an output's rows: poison, what is not finite, mismatches, experts, the worst row (measure/verify/verify.h). */
#pragma once

#include "measure/verify/verify_row.h"

/* rows: of all of the output's, as mf_verify_row_look leaves them; error and limit are filled here. cols: values in a row. 0, 1 with the
 * sentence, or -ENOMEM. written_only: poison alone is looked for. */
int mf_verify_judge(const struct mf_verify_input *v, struct mf_verify_row *rows, int64_t cols,
                    bool written_only, struct mf_verdict *ret);

/* "row 1033 (token 129, slot 1, expert 7)" */
void mf_verify_name_row(const struct mf_verify_input *v, int64_t p, int64_t source, char *buf, size_t cap);
