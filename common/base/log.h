/* Log lines on stderr: "2026-11-20T23:01:07.123Z moefarmd info: text". Libraries return errors; the program
 * logs each error once, where the context is known. Thread-safe: a line is one write(2). */
#pragma once

enum mf_log_level { MF_LOG_ERROR, MF_LOG_WARNING, MF_LOG_INFO, MF_LOG_DEBUG };

/* program must outlive every message. Called once, before threads start. */
void mf_log_init(const char *program, enum mf_log_level level);
void mf_log(enum mf_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Logs at error level with ": " and the text of -r appended, and returns r. */
int mf_log_errno(int r, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_err(r, ...) mf_log_errno(r, __VA_ARGS__)
#define log_warn(...)   mf_log(MF_LOG_WARNING, __VA_ARGS__)
#define log_info(...)   mf_log(MF_LOG_INFO, __VA_ARGS__)
#define log_debug(...)  mf_log(MF_LOG_DEBUG, __VA_ARGS__)
