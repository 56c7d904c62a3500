#include "kernels/aiter/aiter_lists.h"

#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "kernels/aiter/aiter_lists_private.h"

const struct mf_aiter_lists *mf_aiter_lists_builtin(void)
{
    static const struct mf_aiter_lists builtin = {.text = mf_aiter_list_text};
    return &builtin;
}

/* Returns the start of the line after the one at `at`, or NULL. */
static const char *next_line(const char *at)
{
    const char *end = strchr(at, '\n');
    return end && end[1] ? end + 1 : NULL;
}

/* Returns what follows the word at the start of a line, or NULL if the line starts with another word. */
static const char *after_word(const char *line, const char *word)
{
    size_t len = strlen(word);
    if (strncmp(line, word, len) != 0 || (line[len] != ' ' && line[len] != '\n' && line[len]))
        return NULL;
    return line[len] == ' ' ? line + len + 1 : line + len;
}

void mf_aiter_lists_version(const struct mf_aiter_lists *l, char ret[MF_AITER_VERSION_MAX])
{
    mf_format(ret, MF_AITER_VERSION_MAX, "unknown");
    for (const char *line = l->text; line; line = next_line(line)) {
        const char *version = after_word(line, "version");
        if (version) {
            mf_format(ret, MF_AITER_VERSION_MAX, "%.*s", (int)strcspn(version, "\n"), version);
            return;
        }
    }
}

struct mf_aiter_cursor mf_aiter_list_find(const struct mf_aiter_lists *l, const char *name, const char *gfx)
{
    for (const char *line = l->text; line; line = next_line(line)) {
        const char *rest = after_word(line, "list");
        rest = rest ? after_word(rest, name) : NULL;
        if (rest && (!gfx || after_word(rest, gfx)))
            return (struct mf_aiter_cursor){next_line(line)};
    }
    return (struct mf_aiter_cursor){NULL};
}

bool mf_aiter_list_next(struct mf_aiter_cursor *c, struct mf_aiter_entry *ret)
{
    char line[MF_STEP_NAME_MAX + 64];
    struct mf_aiter_entry e = {.name = ""};
    while (c->at && c->at[0] == '#')
        c->at = next_line(c->at);
    if (!c->at || after_word(c->at, "list") || after_word(c->at, "version"))
        return false;
    mf_format(line, sizeof(line), "%.*s", (int)strcspn(c->at, "\n"), c->at);
    c->at = next_line(c->at);
    const char *rest = line + strcspn(line, " ");
    mf_format(e.name, sizeof(e.name), "%.*s", (int)(rest - line), line);
    (void)sscanf(rest, "%d %d %d %d", &e.value[0], &e.value[1], &e.value[2], &e.value[3]);
    *ret = e;
    return true;
}

bool mf_aiter_lists_have(const struct mf_aiter_lists *l, const char *kernel)
{
    size_t len = strlen(kernel);
    if (len == 0 || strcspn(kernel, " \n") != len)
        return false;
    for (const char *at = strstr(l->text, kernel); at; at = strstr(at + 1, kernel))
        if (at > l->text && at[-1] == '\n' && (at[len] == ' ' || at[len] == '\n' || !at[len]))
            return true;
    return false;
}

bool mf_aiter_lists_have_instance(const struct mf_aiter_lists *l, const char *kind, const char *tile,
                                  int32_t version)
{
    struct mf_aiter_entry e;
    for (const char *line = l->text; line; line = next_line(line)) {
        const char *rest = after_word(line, "list");
        const char *at = rest ? strstr(rest, kind) : NULL;
        struct mf_aiter_cursor c = {rest ? next_line(line) : NULL};
        if (!at || at - rest > (ptrdiff_t)strcspn(rest, "\n"))
            continue;
        while (mf_aiter_list_next(&c, &e))
            if (strcmp(e.name, tile) == 0 && e.value[3] == version)
                return true;
    }
    return false;
}
