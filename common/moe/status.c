#include "common/moe/status.h"

MF_NAMES_DEFINE(mf_status, MF_STATUS_, MF_STATUS_MAP)
