/* common/table/quant_match.c: entries of module lists against the modules of experts. */
#include <errno.h>
#include <string.h>

#include "common/table/model_internal.h"
#include "support/mf_check.h"

/* clang-format off */
static const struct {
    const char *entry;
    struct mf_expert_module module;
    int matches;
} entries[] = {
    /* names and parts of names */
    {"lm_head",                                              {3, false}, 0},
    {"model.layers.3",                                       {3, false}, 1},
    {"model.layers.3",                                       {13, false}, 0},
    {"model.layers.3.mlp",                                   {3, true},  1},
    {"model.layers.3.mlp.gate",                              {3, false}, 0},
    {"model.layers.3.mlp.shared_experts.up_proj",            {3, false}, 0},
    {"model.layers.3.mlp.experts",                           {3, true},  1},
    {"model.layers.3.mlp.experts.0.up_proj",                 {3, false}, 1},
    {"model.layers.3.mlp.experts.0.up_proj",                 {3, true},  0},
    {"model.layers.3.mlp.experts.0.down_proj",               {3, true},  1},
    {"model.layers.3.mlp.experts.1.down_proj",               {3, true},  0},
    {"language_model.model.layers.3.block_sparse_moe.experts.0.w2", {3, true}, 1},
    {"backbone.layers.3.mixer.experts.0.up_proj",            {3, false}, 1},
    {"backbone.layers.3.mixer.in_proj",                      {3, false}, 0},
    {"layers.3.experts.0.w1",                                {3, false}, 1},
    {"experts",                                              {3, false}, 1},
    {"mlp",                                                  {3, false}, 1},
    {"gate",                                                 {3, false}, 0},
    {"self_attn",                                            {3, false}, 0},
    {"mtp.layers.0.mlp.experts",                             {0, false}, 0},
    /* globs */
    {"model.layers.3*",                                      {3, false}, 1},
    {"model.layers.3.*",                                     {4, false}, 0},
    {"model.layers.3*",                                      {31, false}, 1},
    {"*.experts.*",                                          {3, false}, 1},
    {"*mlp.experts",                                         {3, true},  1},
    {"*self_attn*",                                          {3, true},  0},
    {"*mlp.gate",                                            {3, false}, 0},
    {"*.down_proj",                                          {3, true},  1},
    {"*.down_proj",                                          {3, false}, 0},
    /* regular expressions match at the start of a name */
    {"re:.*experts.*",                                       {3, false}, 1},
    {"re:experts",                                           {3, false}, 0},
    {"re:.*mlp\\.(gate|up|gate_up|down)_proj.*",             {3, false}, 0},
    {"re:model\\.layers\\.\\d+\\.mlp\\.experts",             {3, false}, 1},
    {"re:.*layers\\.(?:1|3)\\.mlp.*?",                       {3, false}, 1},
    {"re:.*layers\\.(?:1|3)\\.mlp.*?",                       {2, false}, 0},
    {"re:^(?!.*experts).*",                                  {3, false}, 0},
    {"re:(?!.*self_attn).*$",                                {3, false}, 1},
    {"re:.*gate$",                                           {3, false}, 0},
    /* not supported */
    {"re:(?i)experts",                                       {3, false}, -EBADMSG},
    {"re:.*(?<!x)experts",                                   {3, false}, -EBADMSG},
    {"re:(.)\\1",                                            {3, false}, -EBADMSG},
    {"re:a{1,9}",                                            {3, false}, -EBADMSG},
    {"re:(",                                                 {3, false}, -EBADMSG},
    {"re:x\\",                                               {3, false}, -EBADMSG},
    {"re:^(?!a(b)).*",                                       {3, false}, -EBADMSG},
};
/* clang-format on */

MF_TEST(matches_entries, .rows = MF_ARRAY_LEN(entries))
{
    int r = mf_module_matches(entries[_i].entry, &entries[_i].module);

    ck_assert_msg(r == entries[_i].matches, "%s, layer %d: %d", entries[_i].entry,
                  (int)entries[_i].module.layer, r);
}

/* A pattern that is too long is refused, not truncated. */
MF_TEST(long_patterns)
{
    char text[600] = "re:";

    memset(text + 3, 'a', sizeof(text) - 4);
    ck_assert_int_eq(mf_module_matches(text, &(struct mf_expert_module){0}), -EBADMSG);
    memcpy(text + 3, "(?!", 3);
    memcpy(text + sizeof(text) - 4, ").*", 4);
    ck_assert_int_eq(mf_module_matches(text, &(struct mf_expert_module){0}), -EBADMSG);
}

int main(void)
{
    return mf_check_main(NULL);
}
