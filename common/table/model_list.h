/* Text of common/table/models.csv, embedded at build time. */
#pragma once

extern const char mf_model_list_csv[];
