/* Log lines on stderr: "2026-11-20T23:01:07.123Z moefarmd info: text". Libraries return errors; the program
 * logs each error once, where the context is known. Thread-safe, because a line is one write(2). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum mf_log_level { MF_LOG_ERROR, MF_LOG_WARNING, MF_LOG_INFO, MF_LOG_DEBUG };

/* Sets the program name and the log level. Call it once, before threads start. The string `program` must stay
 * valid as long as messages are logged. */
void mf_log_init(const char *program, enum mf_log_level level);
void mf_log(enum mf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Logs the message at error level, followed by ": " and the error text of -r. Returns r. */
int mf_log_errno(int r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Limits the lines that a peer can cause by repeating a message. Zero-initialised; not thread-safe. */
struct mf_log_limit {
    int64_t since_ms; /* start of the period; 0: no line was logged yet */
    int n_lines;
    int64_t n_left_out;
};
#define MF_LOG_LIMIT_MS 10000
/* Returns true for the first `max` calls of a period of MF_LOG_LIMIT_MS. The caller then logs its line. The
 * first call of the next period logs how many lines were left out. now_ms: monotonic. */
bool mf_log_limit(struct mf_log_limit *l, int max, int64_t now_ms);

#define log_err(r, ...) mf_log_errno(r, __VA_ARGS__)
#define log_warn(...)   mf_log(MF_LOG_WARNING, __VA_ARGS__)
#define log_info(...)   mf_log(MF_LOG_INFO, __VA_ARGS__)
#define log_debug(...)  mf_log(MF_LOG_DEBUG, __VA_ARGS__)
