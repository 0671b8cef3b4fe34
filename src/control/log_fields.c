// SPDX-License-Identifier: Apache-2.0
// The table of log_fields.def. Pure.
#include "control/log_fields.h"

const struct log_field log_fields[LOG_FIELDS_COUNT_] = {
#define LOG_FIELD(name, member, scale, unit) {#name, #member, scale, LOG_FIELD_UNIT_##unit},
#include "control/log_fields.def"
};

const struct log_field *log_fields_find(struct span name)
{
    for (unsigned i = 0; i < LOG_FIELDS_COUNT_; i++) {
        if (span_equal_cstr(name, log_fields[i].name)) {
            return &log_fields[i];
        }
    }
    return NULL;
}

const char *log_fields_names(void)
{
    static const char names[] =
#define LOG_FIELD(name, ...) ", " #name
#include "control/log_fields.def"
        ;
    return names + 2; // without the first separator
}
