#include "server/choose/search.h"

MF_NAMES_DEFINE(mf_search, MF_SEARCH_, MF_SEARCH_MAP)
MF_NAMES_DEFINE(mf_promote, MF_PROMOTE_, MF_PROMOTE_MAP)
