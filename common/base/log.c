#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/text.h"

#define LINE_MAX_BYTES 4096 /* PIPE_BUF: writes up to this size are atomic */

/* Set once before threads start, then read-only. */
static const char *log_program = "moefarm";
static enum mf_log_level log_level = MF_LOG_INFO;

void mf_log_init(const char *program, enum mf_log_level level)
{
    log_program = program;
    log_level = level;
}

/* Formats "2026-11-20T23:01:07.123Z". Avoids gmtime_r, which takes the C library's time zone lock. The
 * conversion of days to a date is from Howard Hinnant, "chrono-compatible low-level date algorithms", in
 * which a year starts in March. */
static void print_time(int64_t wall_ms, char *buf, size_t cap)
{
    int64_t days = wall_ms / 86400000, ms = wall_ms % 86400000;
    int64_t z = days + 719468, era = z / 146097, day_of_era = z - era * 146097;
    int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
    int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t march_month = (5 * day_of_year + 2) / 153;
    int day = (int)(day_of_year - (153 * march_month + 2) / 5 + 1);
    int month = (int)(march_month < 10 ? march_month + 3 : march_month - 9);
    int year = (int)(year_of_era + era * 400 + (month <= 2));
    mf_format(buf, cap, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", year, month, day, (int)(ms / 3600000),
              (int)(ms / 60000 % 60), (int)(ms / 1000 % 60), (int)(ms % 1000));
}

/* Replaces control characters, so that text quoted from a peer cannot forge a log line. */
static void keep_on_one_line(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = ' ';
    }
}

__attribute__((format(printf, 3, 0))) static void write_line(enum mf_log_level level, const char *suffix,
                                                             const char *format, va_list args)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    static const char cut[] = "…";
    char line[LINE_MAX_BYTES], when[32];
    const size_t room = sizeof(line) - strlen(suffix) - sizeof(cut) - 1;

    print_time(mf_wall_ms(), when, sizeof(when));
    mf_format(line, room, "%s %s %s: ", when, log_program, names[level]);
    size_t len = strlen(line);
    int n = vsnprintf(line + len, room - len, format, args);
    bool complete = n >= 0 && (size_t)n < room - len;
    if (n < 0)
        line[len] = '\0';
    len += strlen(line + len);
    mf_format(line + len, sizeof(line) - len, "%s%s", complete ? "" : cut, suffix);
    keep_on_one_line(line);
    len = strlen(line);
    line[len] = '\n';
    (void)!write(STDERR_FILENO, line, len + 1);
}

void mf_log(enum mf_log_level level, const char *format, ...)
{
    if (level > log_level)
        return;
    int saved = errno;
    va_list args;
    va_start(args, format);
    write_line(level, "", format, args);
    va_end(args);
    errno = saved;
}

int mf_log_errno(int r, const char *format, ...)
{
    int saved = errno;
    char suffix[128];
    const char *text = strerrordesc_np(r < 0 ? -r : r);
    if (text)
        mf_format(suffix, sizeof(suffix), ": %s", text);
    else
        mf_format(suffix, sizeof(suffix), ": error %d", r);
    va_list args;
    va_start(args, format);
    write_line(MF_LOG_ERROR, suffix, format, args);
    va_end(args);
    errno = saved;
    return r;
}

bool mf_log_limit(struct mf_log_limit *l, int max, int64_t now_ms)
{
    if (!l->since_ms || now_ms - l->since_ms >= MF_LOG_LIMIT_MS) {
        if (l->n_left_out > 0)
            log_info("left out %" PRId64 " similar lines", l->n_left_out);
        *l = (struct mf_log_limit){.since_ms = now_ms};
    }
    if (l->n_lines < max) {
        l->n_lines++;
        return true;
    }
    l->n_left_out++;
    return false;
}
