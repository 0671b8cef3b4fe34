// SPDX-License-Identifier: Apache-2.0
// The condition clients-refused. It holds for 10 minutes after the last refusal, and counts from
// the first one, so its count belongs to its `since`. It is no warning, because any program that
// can connect can cause it. Missing rights are not counted, because programs often ask whether they
// may do something.
#include "server/command_refused.h"

#include <stdlib.h>
#include <string.h>

#include "base/human.h"
#include "stats/stats.h"

#define LATELY_S 600u

static void append_reason(struct buf *out, uint64_t count, const char *reason)
{
    if (count > 0) {
        buf_printf(out, "%s%llu %s", out->len > 0 ? ", " : "", (unsigned long long)count, reason);
    }
}

void command_refused_look(struct command_refused *refused, const struct proxy *proxy,
                          struct conditions *conditions)
{
    static const enum counter counters[COMMAND_REFUSED_REASONS] = {
        COUNTER_auth_skewed, COUNTER_auth_unknown_keys, COUNTER_auth_signatures};
    uint64_t counts[COMMAND_REFUSED_REASONS], sum = 0;
    for (unsigned i = 0; i < COMMAND_REFUSED_REASONS; i++) {
        counts[i] = stats_value(counters[i]);
        sum += counts[i];
    }
    if (!conditions_rose(conditions, CONDITION_clients_refused, sum, LATELY_S)) {
        memcpy(refused->before, counts, sizeof(counts));
        conditions_tell(conditions, CONDITION_clients_refused, false);
        return;
    }
    struct buf reasons, clock;
    char off[HUMAN_TIME_MAX];
    int64_t skew_s = proxy_client_skew_s(proxy);
    buf_init(&reasons, CONDITION_TEXT_MAX);
    buf_init(&clock, CONDITION_TEXT_MAX);
    buf_printf(&clock, "whose clock is off (the last one %s %s)", human_time(llabs(skew_s), off),
               skew_s < 0 ? "behind" : "ahead");
    append_reason(&reasons, counts[0] - refused->before[0], buf_cstr(&clock));
    append_reason(&reasons, counts[1] - refused->before[1], "with an unknown access key");
    append_reason(&reasons, counts[2] - refused->before[2], "with a wrong signature");
    conditions_tell_more(conditions, CONDITION_clients_refused,
                         conditions_row(CONDITION_clients_refused).remedy,
                         "requests of clients were refused: %s", buf_cstr(&reasons));
    buf_done(&clock);
    buf_done(&reasons);
}
