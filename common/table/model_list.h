/* common/table/models.csv as it was at build time. */
#pragma once

extern const char mf_model_list_csv[];
