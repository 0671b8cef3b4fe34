// SPDX-License-Identifier: Apache-2.0
// Reports what the policy knows of the runs of one object, for a user who asks why they are kept or
// not. Also converts the ages of evicted runs from ticks of the policy's clock to milliseconds.
#include "stats/stats.h"
#include "store/retention/retention.h"

#define HISTORY_TICKS 32u // least number of ticks between two entries of the history

void retention_note_time(struct retention *r)
{
    struct policy_stats stats;
    pthread_mutex_lock(&r->lock);
    policy_stats(r->policy, &stats);
    const struct retention_history *last =
        &r->history[(r->history_count + RETENTION_HISTORY - 1) % RETENTION_HISTORY];
    if (r->history_count == 0 || stats.tick - last->tick >= HISTORY_TICKS) {
        r->history[r->history_count++ % RETENTION_HISTORY] =
            (struct retention_history){stats.tick, disk_real_us()};
    }
    pthread_mutex_unlock(&r->lock);
}

// Converts an age in ticks to milliseconds. Rounds up to the time of the next older entry in the
// history. Returns UINT64_MAX if there is no such entry.
static uint64_t time_since_locked(const struct retention *r, uint32_t age_ticks, uint32_t now_tick)
{
    check(r->policy != NULL);
    unsigned count = r->history_count < RETENTION_HISTORY ? r->history_count : RETENTION_HISTORY;
    for (unsigned i = 1; i <= count; i++) { // from the latest entry to the oldest
        const struct retention_history *then =
            &r->history[(r->history_count - i) % RETENTION_HISTORY];
        if (now_tick - then->tick >= age_ticks) {
            return (disk_real_us() - then->us) / 1000;
        }
    }
    return UINT64_MAX;
}

void retention_note_age_locked(const struct retention *r, uint32_t age_ticks)
{
    struct policy_stats stats;
    policy_stats(r->policy, &stats);
    uint64_t ms = time_since_locked(r, age_ticks, stats.tick);
    if (ms == UINT64_MAX &&
        r->history_count > RETENTION_HISTORY) { // older than the history: use its oldest entry
        ms = (disk_real_us() - r->history[r->history_count % RETENTION_HISTORY].us) / 1000;
    }
    if (ms != UINT64_MAX) { // otherwise the last use was before this process started
        stats_observe_us(HISTOGRAM_eviction_age, ms * 1000);
    }
}

static unsigned priority_locked(const struct retention *r, unsigned policy_group)
{
    struct policy_group_figures figures;
    policy_group_figures(r->policy, policy_group, &figures);
    return retention_group_of_policy(figures.plain);
}

static void explain_run_locked(struct retention *r, const struct store_explain *explain,
                               struct store_explain_run *run)
{
    struct policy_explanation why;
    check(retention_learns(r));
    policy_explain(r->policy, policy_key(explain->hash, run->first_block),
                   retention_policy_group(explain->group), run->segment_number, run->header_offset,
                   &why);
    check(why.group < POLICY_GROUPS);
    run->priority = priority_locked(r, why.group);
    run->is_pinned = why.is_pinned;
    run->is_on_probation = why.is_on_probation;
    run->age_bytes = why.age_bytes;
    run->interval_bytes = why.interval_bytes;
    run->rank = why.rank;
    run->bar = why.bar;
    if (run->segment_number != 0) {
        run->state = why.is_stored ? STORE_EXPLAIN_KEPT : STORE_EXPLAIN_UNRANKED;
    } else {
        run->state = why.would_be_taken ? STORE_EXPLAIN_WANTED : STORE_EXPLAIN_REFUSED;
    }
}

void retention_explain(struct retention *r, struct store_explain *explain)
{
    explain->learns = retention_learns(r);
    if (!explain->learns) {
        return;
    }
    retention_drain(r);
    pthread_mutex_lock(&r->lock);
    struct policy_stats stats;
    policy_stats(r->policy, &stats);
    explain->is_full = stats.is_full;
    explain->is_silent = stats.is_silent;
    unsigned group = retention_policy_group(explain->group);
    struct policy_group_figures figures;
    policy_group_figures(r->policy, group, &figures);
    explain->group_bytes = figures.bytes;
    explain->group_max_bytes = figures.bytes_max;
    for (unsigned i = 0; i < explain->run_count; i++) {
        explain_run_locked(r, explain, &explain->runs[i]);
    }
    pthread_mutex_unlock(&r->lock);
}
