/* Log lines on stderr: "2026-11-20T23:01:07.123Z moefarmd info: text". Libraries return errors; the program
 * logs each error once, where the context is known. Thread-safe, because a line is one write(2). */
#pragma once

enum mf_log_level { MF_LOG_ERROR, MF_LOG_WARNING, MF_LOG_INFO, MF_LOG_DEBUG };

/* Sets the program name and the log level. Call it once, before threads start. The string `program` must stay
 * valid as long as messages are logged. */
void mf_log_init(const char *program, enum mf_log_level level);
void mf_log(enum mf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Logs the message at error level, followed by ": " and the error text of -r. Returns r. */
int mf_log_errno(int r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_err(r, ...) mf_log_errno(r, __VA_ARGS__)
#define log_warn(...)   mf_log(MF_LOG_WARNING, __VA_ARGS__)
#define log_info(...)   mf_log(MF_LOG_INFO, __VA_ARGS__)
#define log_debug(...)  mf_log(MF_LOG_DEBUG, __VA_ARGS__)
