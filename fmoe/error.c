#include <stdarg.h>
#include <stdio.h>

#include "fmoe/private.h"

int fmoe_fail(struct fmoe_error *error, int r, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if (error)
        (void)vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    return r;
}
