#include "common/moe/unit_kind.h"

MF_NAMES_DEFINE(mf_unit_kind, MF_UNIT_, MF_UNIT_KIND_MAP)
