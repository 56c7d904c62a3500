/* The built-in lists, embedded at build time (lists.txt). */
#pragma once

extern const char mf_aiter_list_text[];
