/* Keeps control characters of untrusted texts away from the terminal.
 *
 * Names, reasons and cells come from workers, other users and files. An escape sequence in one of them could
 * rewrite the terminal's text or title, so everything that goes through stdout and stderr is filtered. */
#pragma once

#include <stddef.h>

/* Replaces stdout and stderr by streams that print '?' for each byte of a control character (C0 except
 * newline and tab, DEL, C1) and of invalid UTF-8. Call it once, before anything is printed. */
int mf_plain_output_start(void);

/* Filters text into out, which has room for len bytes. Returns the number of bytes that were consumed: an
 * incomplete character at the end is left for the next call. */
size_t mf_plain_text(const char *text, size_t len, char *out);

/* Moves the cursor up by n lines and clears the screen from there. stdout must be a terminal. */
void mf_plain_output_rewind(size_t n);
