// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: checks what a server with this configuration reports about its cache: whether
// it stores everything, how much of cache.size the index uses, and whether the index or the
// descriptors ran short. Reports nothing if no server runs.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"
#include "control/control.h"
#include "stats/stats.h"

#define SUMMARY_MAX_BYTES (1u << 20)
#define INDEX_SHARE_MAX 50u // percent of cache.size; more means that objects are tiny

// Returns the value of a counter of counters.def in a summary.
#define VALUE(counters, name) command_client_u64(counters, stats_name(COUNTER_##name))

// Returns the summary of the server; NULL if no server answers or it requires a token.
static json_t *summary_of_server(const struct doctor *d)
{
    char address[COMMANDS_ADDRESS_MAX] = "";
    struct admin_client_request request = {.method = "GET",
                                           .path = "/api/v1/summary",
                                           .token = getenv("FOREBAY_ADMIN_TOKEN"),
                                           .timeout_ms = (unsigned)d->timeout_ms};
    struct buf body;
    unsigned status = 0;
    buf_init(&body, SUMMARY_MAX_BYTES);
    enum err err = commands_ask(d->config, &request, address, &status, &body);
    json_t *json = err == ERR_OK && status == 200 ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    buf_done(&body);
    return json;
}

// Reports refusals to store. Red: the cache does not work now. Yellow: a resource was short since
// the start.
static void check_stores(struct doctor *d, const json_t *summary)
{
    const char *now = command_client_text(summary, "refusal");
    unsigned before = d->count[DOCTOR_YELLOW] + d->count[DOCTOR_RED];
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(summary, "refusals"), i, row)
    {
        const char *word = command_client_text(row, "word");
        const char *text = command_client_text(row, "text");
        const char *remedy = command_client_text(row, "remedy");
        unsigned long long count = command_client_u64(row, "count");
        enum refusal why = refusal_of_word(word);
        if (strcmp(word, now) == 0) {
            bool is_broken = why == REFUSAL_disk_degraded || why == REFUSAL_index_degraded;
            command_doctor_find(d, is_broken ? DOCTOR_RED : DOCTOR_YELLOW, "stores", remedy,
                                "nothing is stored now: %s: %s", word, text);
        } else if (count > 0 && (why == REFUSAL_index_busy || why == REFUSAL_index_full ||
                                 why == REFUSAL_descriptors)) {
            command_doctor_find(d, DOCTOR_YELLOW, "stores", remedy,
                                "%llu fills were not stored since the start: %s: %s", count, word,
                                text);
        }
    }
    if (before == d->count[DOCTOR_YELLOW] + d->count[DOCTOR_RED]) {
        command_doctor_find(d, DOCTOR_GREEN, "stores", NULL, "the running server stores");
    }
}

static void check_index(struct doctor *d, const json_t *counters)
{
    uint64_t bytes = VALUE(counters, index_bytes), all = VALUE(counters, cache_capacity_bytes);
    unsigned long long dropped = VALUE(counters, index_full);
    unsigned share = all > 0 ? (unsigned)(100 * (double)bytes / (double)all) : 0;
    if (dropped > 0) {
        command_doctor_find(d, DOCTOR_YELLOW, "index", refusal_text(REFUSAL_index_full)->remedy,
                            "it takes %s of %s (%u %%), and dropped %llu batches since the start: "
                            "cache.size had no room for them",
                            command_bytes((double)bytes), command_bytes((double)all), share,
                            dropped);
    } else {
        bool is_large = share > INDEX_SHARE_MAX;
        command_doctor_find(d, is_large ? DOCTOR_YELLOW : DOCTOR_GREEN, "index",
                            is_large ? "raise cache.size: the objects are tiny, and the index "
                                       "takes the room of their data"
                                     : NULL,
                            "it takes %s of %s (%u %%)", command_bytes((double)bytes),
                            command_bytes((double)all), share);
    }
}

static void check_descriptors(struct doctor *d, const json_t *counters)
{
    unsigned long long paused = VALUE(counters, http_accept_paused);
    unsigned long long waits = VALUE(counters, segment_open_waits);
    unsigned long long failed = VALUE(counters, segment_open_failures);
    unsigned long long unstored = VALUE(counters, admission_rejected_descriptors);
    if (paused + failed + unstored > 0) {
        command_doctor_find(d, DOCTOR_YELLOW, "descriptors",
                            refusal_text(REFUSAL_descriptors)->remedy,
                            "they ran out since the start: %llu pauses of accepting, %llu segments "
                            "not opened, %llu waits for one, %llu fills not stored",
                            paused, failed, waits, unstored);
    } else {
        command_doctor_find(d, DOCTOR_GREEN, "descriptors", NULL, "they suffice: %llu for segments",
                            (unsigned long long)VALUE(counters, segment_descriptors));
    }
}

void command_doctor_server(struct doctor *d)
{
    json_t *summary = d->look.is_in_use ? summary_of_server(d) : NULL;
    const json_t *counters = json_object_get(summary, "counters");
    if (counters != NULL) {
        check_stores(d, summary);
        check_index(d, counters);
        check_descriptors(d, counters);
    }
    json_decref(summary);
}
