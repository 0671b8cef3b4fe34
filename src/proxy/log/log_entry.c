// SPDX-License-Identifier: Apache-2.0
// Words for a request that has ended, which all logs share. Pure.
#include "proxy/log/log.h"

const char *log_entry_error(const struct log_entry *entry)
{
    if (entry->outcome == HTTP_CLIENT_GONE) {
        return "ClientGone";
    }
    if (entry->outcome == HTTP_CLIENT_SLOW) {
        return "ClientSlow";
    }
    if (entry->outcome == HTTP_CUT) {
        return "Cut";
    }
    check(entry->outcome == HTTP_DONE);
    return entry->r->error_code != NULL ? entry->r->error_code : "";
}

const char *log_entry_unstored(const struct log_entry *entry)
{
    const struct request *r = entry->r;
    return r->has_run && r->unstored_why != NULL ? r->unstored_why : "";
}

const char *log_entry_why(const struct log_entry *entry)
{
    const struct request *r = entry->r;
    const char *why = r->refused_why != NULL ? r->refused_why : origin_why(r->err);
    return why != NULL ? why : "";
}
