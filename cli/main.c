/* moefarm, the command line client: submits shapes to a farm and exports the tuned tables. */
#include <stddef.h>

#include "cli/program.h"

int main(int argc, char **argv)
{
    return mf_program_run(argc, argv, NULL);
}
