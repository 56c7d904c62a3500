/* Matches entries of quantisation configs against the modules of experts. Checkpoints and frameworks name the
 * same module differently: model.layers.3.mlp.experts.0.up_proj, language_model.model.layers.3.mlp.experts,
 * backbone.layers.3.mixer.experts.0.up_proj, model.layers.3.block_sparse_moe.experts.0.w1. */
#include <errno.h>
#include <inttypes.h>
#include <regex.h>
#include <string.h>

#include "common/base/cleanup.h"
#include "common/base/text.h"
#include "common/table/model_internal.h"

#define ENTRY_MAX 256
#define WORD_MAX  48
#define NAME_MAX_ 128

static const char *const roots[] = {"model",   "language_model", "backbone", "thinker",
                                    "decoder", "transformer",    "llm",      NULL};
static const char *const layer_words[] = {"layers", "blocks", "h", NULL};
static const char *const blocks[] = {"mlp", "block_sparse_moe", "mixer", "feed_forward", "ffn", "moe", NULL};
static const char *const experts[] = {"experts", NULL};
static const char *const ups[] = {"gate_up_proj", "gate_proj", "up_proj", "w1", "w3", "w13", NULL};
static const char *const downs[] = {"down_proj", "w2", NULL};

/* ---- plain entries: dotted names and parts of them ---- */

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++) {
        if (strcmp(word, *list) == 0)
            return true;
    }
    return false;
}

/* Splits off the next word of a dotted name. "" at the end. */
static void next_word(const char **rest, char word[WORD_MAX])
{
    size_t len = strcspn(*rest, ".");

    mf_format(word, WORD_MAX, "%.*s", (int)(len < WORD_MAX ? len : WORD_MAX - 1), *rest);
    *rest += len + ((*rest)[len] == '.');
}

/* Skips the next word if it is in the list. Returns whether it was. */
static bool skip(const char **rest, const char *const *list)
{
    const char *before = *rest;
    char word[WORD_MAX];

    next_word(rest, word);
    if (is_one_of(word, list))
        return true;
    *rest = before;
    return false;
}

/* True if the rest is empty or names expert 0 and the module's projection. */
static bool is_projection(const char *rest, bool down)
{
    char word[WORD_MAX];
    int64_t expert;

    next_word(&rest, word);
    if (mf_parse_i64(word, 0, INT32_MAX, &expert) == 0) {
        if (expert != 0)
            return false;
        next_word(&rest, word);
    }
    return !*word || is_one_of(word, down ? downs : ups);
}

static bool matches_plain(const char *entry, const struct mf_expert_module *module)
{
    char word[WORD_MAX];
    int64_t layer;

    while (skip(&entry, roots))
        ;
    if (skip(&entry, layer_words) && *entry) {
        next_word(&entry, word);
        if (mf_parse_i64(word, 0, INT32_MAX, &layer) < 0 || layer != module->layer)
            return false;
    }
    while (*entry && skip(&entry, blocks))
        ;
    return !*entry || (skip(&entry, experts) && is_projection(entry, module->down));
}

/* ---- globs and regular expressions: tried on every name that the module can have ---- */

/* Mistral's own checkpoints have neither prefix nor block: layers.3.experts.0.w1. */
static const char *const prefixes[] = {"model.",    "model.language_model.", "language_model.model.",
                                       "backbone.", "thinker.model.",        ""};

typedef bool (*match_fn)(const char *name, const void *pattern);

/* True if one of the names of the module matches. */
static bool any_name(const struct mf_expert_module *m, match_fn match, const void *pattern)
{
    char parent[NAME_MAX_], name[NAME_MAX_ * 2];

    for (size_t i = 0; i < MF_ARRAY_LEN(prefixes); i++) {
        for (const char *const *block = blocks; *block; block++) {
            mf_format(parent, sizeof(parent), "%slayers.%" PRId32 ".%s%sexperts", prefixes[i], m->layer,
                      *prefixes[i] ? *block : "", *prefixes[i] ? "." : "");
            if (match(parent, pattern))
                return true;
            for (const char *const *word = m->down ? downs : ups; *word; word++) {
                mf_format(name, sizeof(name), "%s.0.%s", parent, *word);
                if (match(name, pattern))
                    return true;
            }
        }
    }
    return false;
}

static bool glob_matches(const char *name, const void *pattern)
{
    return mf_glob(pattern, name);
}

static bool regex_matches(const char *name, const void *pattern)
{
    regmatch_t at;
    return regexec(pattern, name, 1, &at, 0) == 0 && at.rm_so == 0;
}

/* True if the entry has "layers.N." with another N: most entries of long lists. */
static bool is_other_layer(const char *entry, int32_t layer)
{
    const char *at = strstr(entry, "layers.");
    char number[WORD_MAX];
    int64_t n;

    if (!at)
        return false;
    at += strlen("layers.");
    next_word(&at, number);
    return mf_parse_i64(number, 0, INT32_MAX, &n) == 0 && n != layer;
}

/* Rewrites Python's syntax as a POSIX extended regular expression. Returns false for syntax that POSIX lacks.
 * Repetition counts and back-references are not supported, because their cost has no useful bound. */
static bool translate(const char *python, char posix[ENTRY_MAX * 5])
{
    char *out = posix;

    if (strlen(python) >= ENTRY_MAX)
        return false;
    for (const char *p = python; *p; p++) {
        if (strncmp(p, "(?:", 3) == 0) {
            *out++ = '(';
            p += 2;
        } else if (strncmp(p, "(?", 2) == 0 || strchr("{}", *p)) {
            return false;
        } else if (strncmp(p, "\\d", 2) == 0) {
            out = stpcpy(out, "[0-9]");
            p++;
        } else if (*p == '\\') {
            if (!p[1] || (strchr("bBwWsS", p[1]) == NULL && p[1] != '_' && !strchr(".+*?()[]|^$/-", p[1])))
                return false;
            *out++ = *p++;
            *out++ = *p;
        } else if (*p == '?' && p > python && strchr("*+?", p[-1])) {
            continue; /* the lazy form matches the same names */
        } else {
            *out++ = *p;
        }
    }
    *out = '\0';
    return true;
}

static int match_posix(const char *python, const struct mf_expert_module *module)
{
    char posix[ENTRY_MAX * 5];
    regex_t regex;

    if (!translate(python, posix) || regcomp(&regex, posix, REG_EXTENDED) != 0)
        return -EBADMSG;
    bool found = any_name(module, regex_matches, &regex);
    regfree(&regex);
    return found;
}

int mf_module_matches_regex(const char *regex, const struct mf_expert_module *module)
{
    char unless[ENTRY_MAX];
    const char *start = regex + (*regex == '^'), *end = strchr(start, ')');

    /* "^(?!X).*" matches all names at whose start X does not match */
    if (strncmp(start, "(?!", 3) != 0)
        return match_posix(regex, module);
    if (!end || end - start - 3 >= ENTRY_MAX || strchr(start + 3, '(') ||
        (strcmp(end, ").*") != 0 && strcmp(end, ").*$") != 0))
        return -EBADMSG;
    mf_format(unless, sizeof(unless), "%.*s", (int)(end - start - 3), start + 3);
    int r = match_posix(unless, module);
    return r < 0 ? r : !r;
}

int mf_module_matches(const char *entry, const struct mf_expert_module *module)
{
    if (strncmp(entry, "re:", 3) == 0)
        return mf_module_matches_regex(entry + 3, module);
    if (!strpbrk(entry, "*?"))
        return matches_plain(entry, module);
    return !is_other_layer(entry, module->layer) && any_name(module, glob_matches, entry);
}
