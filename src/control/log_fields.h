// SPDX-License-Identifier: Apache-2.0
// The names of log_fields.def, which filters of requests and `forebay log --fields` accept.
#ifndef FOREBAY_CONTROL_LOG_FIELDS_H
#define FOREBAY_CONTROL_LOG_FIELDS_H

#include "base/bytes.h"

enum log_field_unit { LOG_FIELD_UNIT_NONE, LOG_FIELD_UNIT_TIME, LOG_FIELD_UNIT_BYTES };

struct log_field {
    const char *name, *member;
    double scale; // factor to seconds or bytes; 1: unchanged; 0: the member is a text
    enum log_field_unit unit;
};

enum {
#define LOG_FIELD(name, ...) LOG_FIELDS_##name,
#include "control/log_fields.def"
    LOG_FIELDS_COUNT_
};
extern const struct log_field log_fields[LOG_FIELDS_COUNT_];

// Returns the field with this name, or NULL.
const struct log_field *log_fields_find(struct span name);
// Returns all names, separated by ", ".
const char *log_fields_names(void);

#endif
