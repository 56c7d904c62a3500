/* The program moefarm: finds the command in its arguments and runs it. */
#pragma once

struct mf_operators;

/* argv may be reordered. operators: of the Python interpreter that this process is in; NULL: none. Returns
 * the program's exit code. */
int mf_program_run(int argc, char **argv, const struct mf_operators *operators);
