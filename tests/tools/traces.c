// SPDX-License-Identifier: Apache-2.0
// The generators. Random numbers are splitmix64, seeded with the FNV-1a hash of the name. Shuffles
// are Fisher and Yates's, from the top. A checksum proves that two generators made the same trace.
#include "traces_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define SHARD 64u
#define WORKERS 8u

struct random {
    uint64_t state;
};

static uint64_t random_next(struct random *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t random_below(struct random *random, uint32_t n)
{
    return (uint32_t)((unsigned __int128)random_next(random) * n >> 64);
}

static double random_unit(struct random *random)
{
    return (double)(random_next(random) >> 11) * 0x1.0p-53;
}

uint64_t trace_fnv(uint64_t hash, const void *bytes, size_t len)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3u;
    }
    return hash;
}

void *trace_take(size_t count, size_t size)
{
    void *taken = calloc(count > 0 ? count : 1, size);
    check(taken != NULL);
    return taken;
}

void trace_add(struct trace *trace, uint32_t block, unsigned flags)
{
    if (trace->request_count == trace->request_cap) {
        trace->request_cap = trace->request_cap > 0 ? trace->request_cap * 2 : 1u << 16;
        trace->blocks = realloc(trace->blocks, trace->request_cap * sizeof(*trace->blocks));
        trace->flags = realloc(trace->flags, trace->request_cap);
        check(trace->blocks != NULL);
        check(trace->flags != NULL);
    }
    trace->blocks[trace->request_count] = block;
    trace->flags[trace->request_count++] = (uint8_t)flags;
    if (block >= trace->block_count) {
        trace->block_count = block + 1;
    }
}

// --- orders of one epoch -------------------------------------------------------------------------

enum order { IN_ORDER, SHUFFLED, WINDOWED, BY_SHARD };

static void fill_in_order(uint32_t *blocks, uint32_t count, uint32_t first)
{
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = first + i;
    }
}

static void shuffle(uint32_t *blocks, uint32_t count, struct random *random)
{
    for (uint32_t i = count; i-- > 1;) {
        uint32_t j = random_below(random, i + 1);
        uint32_t block = blocks[i];
        blocks[i] = blocks[j];
        blocks[j] = block;
    }
}

static void order_windowed(uint32_t *blocks, uint32_t count, uint32_t first, struct random *random)
{
    uint32_t window = count / 10 > 0 ? count / 10 : 1;
    uint32_t *waiting = trace_take(window, sizeof(*waiting));
    uint32_t waiting_count = 0, out = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (waiting_count < window) {
            waiting[waiting_count++] = first + i;
            continue;
        }
        uint32_t j = random_below(random, waiting_count);
        blocks[out++] = waiting[j];
        waiting[j] = first + i;
    }
    while (waiting_count > 0) {
        uint32_t j = random_below(random, waiting_count);
        blocks[out++] = waiting[j];
        waiting[j] = waiting[--waiting_count];
    }
    free(waiting);
}

static void order_by_shard(uint32_t *blocks, uint32_t count, uint32_t first, struct random *random)
{
    uint32_t shard_count = (count + SHARD - 1) / SHARD, out = 0;
    uint32_t *shards = trace_take(shard_count, sizeof(*shards));
    fill_in_order(shards, shard_count, 0);
    shuffle(shards, shard_count, random);
    for (uint32_t i = 0; i < shard_count; i++) {
        for (uint32_t j = shards[i] * SHARD; j < shards[i] * SHARD + SHARD && j < count; j++) {
            blocks[out++] = first + j;
        }
    }
    free(shards);
}

static void order_epoch(uint32_t *blocks, uint32_t count, uint32_t first, enum order order,
                        struct random *random)
{
    switch (order) {
    case IN_ORDER:
        fill_in_order(blocks, count, first);
        break;
    case SHUFFLED:
        fill_in_order(blocks, count, first);
        shuffle(blocks, count, random);
        break;
    case WINDOWED:
        order_windowed(blocks, count, first, random);
        break;
    case BY_SHARD:
        order_by_shard(blocks, count, first, random);
        break;
    }
}

// --- who reads -----------------------------------------------------------------------------------

struct making {
    struct trace *trace;
    uint32_t n;
    struct random random;
    uint32_t *blocks; // 2 n
};

static void add_epoch(struct making *m, uint32_t count, uint32_t first, enum order order,
                      unsigned flags)
{
    order_epoch(m->blocks, count, first, order, &m->random);
    for (uint32_t i = 0; i < count; i++) {
        trace_add(m->trace, m->blocks[i], flags);
    }
}

// A job that reads its blocks again and again, each time in a new order.
struct job {
    uint32_t count, first, at;
    uint32_t *blocks;
};

static void job_begin(struct job *job, struct making *m, uint32_t count, uint32_t first)
{
    *job =
        (struct job){.count = count, .first = first, .blocks = trace_take(count, sizeof(uint32_t))};
    order_epoch(job->blocks, count, first, SHUFFLED, &m->random);
}

static uint32_t job_next(struct job *job, struct making *m)
{
    if (job->at == job->count) {
        job->at = 0;
        order_epoch(job->blocks, job->count, job->first, SHUFFLED, &m->random);
    }
    return job->blocks[job->at++];
}

static void job_end(struct job *job)
{
    free(job->blocks);
    job->blocks = NULL;
}

// Shards in a random order dealt to eight workers, which read in turn, each block in `reads` parts.
static void add_workers_epoch(struct making *m, uint32_t reads, unsigned flags)
{
    uint32_t shard_count = (m->n + SHARD - 1) / SHARD;
    uint32_t *shards = trace_take(shard_count, sizeof(*shards));
    fill_in_order(shards, shard_count, 0);
    shuffle(shards, shard_count, &m->random);
    uint32_t shard[WORKERS], at[WORKERS] = {0}, alive = 0;
    for (uint32_t w = 0; w < WORKERS; w++) {
        shard[w] = w;
        alive += w < shard_count;
    }
    while (alive > 0) {
        for (uint32_t w = 0; w < WORKERS; w++) {
            if (shard[w] >= shard_count) {
                continue;
            }
            uint32_t first = shards[shard[w]] * SHARD;
            uint32_t len = first + SHARD <= m->n ? SHARD : m->n - first;
            trace_add(m->trace, first + at[w] / reads, at[w] % reads == 0 ? flags : 0);
            if (++at[w] == len * reads) {
                at[w] = 0;
                shard[w] += WORKERS;
                alive -= shard[w] >= shard_count;
            }
        }
    }
    free(shards);
}

static double *popularity(uint32_t n, double exponent)
{
    double *up_to = trace_take(n, sizeof(*up_to));
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += pow((double)(i + 1), -exponent);
        up_to[i] = sum;
    }
    for (uint32_t i = 0; i < n; i++) {
        up_to[i] /= sum;
    }
    return up_to;
}

static uint32_t popular(const double *up_to, uint32_t n, struct random *random)
{
    double u = random_unit(random);
    uint32_t low = 0, high = n - 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (up_to[middle] > u) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// Lognormal around 60 KB, from 10 to 200.
static void add_lengths(struct making *m)
{
    struct trace *trace = m->trace;
    trace->len_units = trace_take(trace->block_count, sizeof(*trace->len_units));
    trace->base_units = 0;
    for (uint32_t i = 0; i < trace->block_count; i++) {
        double u1 = random_unit(&m->random), u2 = random_unit(&m->random);
        if (u1 < 1e-300) {
            u1 = 1e-300;
        }
        double z = sqrt(-2 * log(u1)) * cos(6.283185307179586 * u2);
        double len = floor(60000 * exp(0.6 * z));
        trace->len_units[i] = (uint32_t)(len < 10000 ? 10000 : len > 200000 ? 200000 : len);
        trace->base_units += trace->len_units[i];
    }
}

static unsigned counts_from(uint32_t i, uint32_t first)
{
    return i >= first ? TRACE_COUNTS : 0;
}

// --- the traces ----------------------------------------------------------------------------------

static void add_epochs(struct making *m, enum order order)
{
    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        add_epoch(m, m->n, 0, order, counts_from(epoch, 4));
    }
}

static void make_a_cyclic(struct making *m)
{
    add_epochs(m, IN_ORDER);
}

static void make_b1_shuffle(struct making *m)
{
    add_epochs(m, SHUFFLED);
}

static void make_b2_winshuf(struct making *m)
{
    add_epochs(m, WINDOWED);
}

static void make_b3_shardshuf(struct making *m)
{
    add_epochs(m, BY_SHARD);
}

static void make_b4_workers8(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        add_workers_epoch(m, 1, counts_from(epoch, 4));
    }
}

static void make_k_subreads4(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        add_workers_epoch(m, 4, counts_from(epoch, 4));
    }
}

static void make_c1_two_cyc(struct making *m)
{
    for (uint32_t i = 0; i < 10 * m->n; i++) {
        trace_add(m->trace, i % m->n, counts_from(i, 4 * m->n));
        if (i >= m->n / 2) {
            trace_add(m->trace, (i - m->n / 2) % m->n, counts_from(i, 4 * m->n));
        }
    }
}

static void make_c2_two_shuf(struct making *m)
{
    struct job one, other;
    job_begin(&one, m, m->n, 0);
    job_begin(&other, m, m->n, 0);
    for (uint32_t i = 0; i < 10 * m->n; i++) {
        trace_add(m->trace, job_next(&one, m), counts_from(i, 4 * m->n));
        if (i >= m->n / 2) {
            trace_add(m->trace, job_next(&other, m), counts_from(i, 4 * m->n));
        }
    }
    job_end(&one);
    job_end(&other);
}

static void make_c3_two_lag(struct making *m)
{
    uint32_t lag = m->n / 50, count = 10 * m->n;
    uint32_t *blocks = trace_take(count, sizeof(*blocks));
    for (uint32_t epoch = 0; epoch < 10; epoch++) {
        order_epoch(blocks + (size_t)epoch * m->n, m->n, 0, SHUFFLED, &m->random);
    }
    for (uint32_t i = 0; i < count; i++) {
        trace_add(m->trace, blocks[i], counts_from(i, 4 * m->n));
        if (i >= lag) {
            trace_add(m->trace, blocks[i - lag], counts_from(i, 4 * m->n));
        }
    }
    free(blocks);
}

static void add_switch(struct making *m, enum order order)
{
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        add_epoch(m, m->n, 0, order, 0);
    }
    for (uint32_t epoch = 0; epoch < 6; epoch++) {
        add_epoch(m, m->n, m->n, order, epoch == 1 ? TRACE_COUNTS2 : counts_from(epoch, 2));
    }
}

static void make_d1_switch_shuf(struct making *m)
{
    add_switch(m, SHUFFLED);
}

static void make_d2_switch_cyc(struct making *m)
{
    add_switch(m, IN_ORDER);
}

// `churn`: now and then, a fiftieth of the blocks swap their popularity with others.
static void add_popular(struct making *m, double exponent, bool churn)
{
    double *up_to = popularity(m->n, exponent);
    fill_in_order(m->blocks, m->n, 0);
    shuffle(m->blocks, m->n, &m->random);
    for (uint32_t i = 0; i < 20 * m->n; i++) {
        for (uint32_t k = 0; churn && i > 0 && i % (m->n / 10) == 0 && k < m->n / 50; k++) {
            uint32_t x = random_below(&m->random, m->n), y = random_below(&m->random, m->n);
            uint32_t block = m->blocks[x];
            m->blocks[x] = m->blocks[y];
            m->blocks[y] = block;
        }
        trace_add(m->trace, m->blocks[popular(up_to, m->n, &m->random)], counts_from(i, 10 * m->n));
    }
    free(up_to);
}

static void make_e1_zipf08(struct making *m)
{
    add_popular(m, 0.8, false);
}

static void make_e2_zipf10(struct making *m)
{
    add_popular(m, 1.0, false);
}

static void make_e3_zipf_churn(struct making *m)
{
    add_popular(m, 1.0, true);
}

static void make_f1_scan_conc(struct making *m)
{
    struct job training;
    job_begin(&training, m, m->n, 0);
    uint32_t scanned = 0;
    for (uint32_t i = 0; i < 9 * m->n; i++) {
        trace_add(m->trace, job_next(&training, m),
                  counts_from(i, 4 * m->n) | (i >= 6 * m->n ? TRACE_COUNTS2 : 0));
        if (i >= 4 * m->n && scanned < 2 * m->n) {
            trace_add(m->trace, m->n + scanned++, 0);
        }
    }
    job_end(&training);
}

static void make_f2_scan_paused(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        add_epoch(m, m->n, 0, SHUFFLED, 0);
    }
    for (uint32_t i = 0; i < 2 * m->n; i++) {
        trace_add(m->trace, m->n + i, 0);
    }
    for (uint32_t epoch = 0; epoch < 4; epoch++) {
        add_epoch(m, m->n, 0, SHUFFLED, TRACE_COUNTS | (epoch == 0 ? TRACE_COUNTS2 : 0));
    }
}

static void make_g_mix(struct making *m)
{
    struct job training;
    job_begin(&training, m, m->n, 0);
    uint32_t hot_count = m->n / 100, checkpoint = m->n + hot_count;
    for (uint32_t i = 0; i < 10 * m->n; i++) {
        unsigned counts = counts_from(i, 4 * m->n);
        trace_add(m->trace, job_next(&training, m), counts);
        if (i >= m->n && i % 9 == 8) {
            trace_add(m->trace, m->n + random_below(&m->random, hot_count),
                      counts != 0 ? TRACE_COUNTS | TRACE_COUNTS2 : 0);
        }
        for (uint32_t k = 0; i % (m->n / 2) == m->n / 2 - 1 && k < m->n / 10; k++) {
            trace_add(m->trace, checkpoint++, 0);
        }
    }
    job_end(&training);
}

static void make_h1_growth(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 14; epoch++) {
        uint32_t count = m->n / 2 + (epoch < 10 ? epoch : 10) * (m->n / 20);
        add_epoch(m, count, 0, SHUFFLED, counts_from(epoch, 2));
    }
}

static void make_h2_sliding(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 30; epoch++) {
        add_epoch(m, m->n, epoch * (m->n / 20), SHUFFLED, counts_from(epoch, 15));
    }
}

static void make_i1_var_shuf(struct making *m)
{
    add_epochs(m, SHUFFLED);
    add_lengths(m);
}

static void make_i2_var_zipf(struct making *m)
{
    add_popular(m, 0.9, false);
    m->trace->block_count = m->n;
    add_lengths(m);
}

static void make_j1_nested(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 12; epoch++) {
        uint32_t count = epoch < 4 ? m->n / 4 : epoch < 8 ? m->n / 2 : m->n;
        add_epoch(m, count, 0, SHUFFLED, counts_from(epoch, 1));
    }
}

static void make_j2_disjoint(struct making *m)
{
    uint32_t quarter = m->n / 4;
    for (uint32_t epoch = 0; epoch < 16; epoch++) {
        add_epoch(m, quarter, epoch / 4 * quarter, SHUFFLED, counts_from(epoch, 1));
    }
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        add_epoch(m, quarter * 4, 0, SHUFFLED, TRACE_COUNTS);
    }
}

static void make_l_dist8(struct making *m)
{
    for (uint32_t epoch = 0; epoch < 96; epoch++) {
        order_epoch(m->blocks, m->n, 0, SHUFFLED, &m->random);
        for (uint32_t i = 0; i < m->n / 8; i++) {
            trace_add(m->trace, m->blocks[i], counts_from(epoch, 48));
        }
    }
}

static void make_m_mixture(struct making *m)
{
    struct job small, large;
    uint32_t large_count = m->n - m->n / 5;
    job_begin(&small, m, m->n / 5, 0);
    job_begin(&large, m, large_count, m->n / 5);
    for (uint32_t i = 0; i < 8 * large_count; i++) {
        unsigned counts = counts_from(i, 4 * large_count);
        trace_add(m->trace, job_next(&small, m), counts != 0 ? TRACE_COUNTS | TRACE_COUNTS2 : 0);
        trace_add(m->trace, job_next(&large, m), counts);
    }
    job_end(&small);
    job_end(&large);
}

#define TRACES(ROW)                                                                                \
    ROW(a_cyclic)                                                                                  \
    ROW(b1_shuffle)                                                                                \
    ROW(b2_winshuf)                                                                                \
    ROW(b3_shardshuf)                                                                              \
    ROW(b4_workers8)                                                                               \
    ROW(c1_two_cyc)                                                                                \
    ROW(c2_two_shuf)                                                                               \
    ROW(c3_two_lag)                                                                                \
    ROW(d1_switch_shuf)                                                                            \
    ROW(d2_switch_cyc)                                                                             \
    ROW(e1_zipf08)                                                                                 \
    ROW(e2_zipf10)                                                                                 \
    ROW(e3_zipf_churn)                                                                             \
    ROW(f1_scan_conc)                                                                              \
    ROW(f2_scan_paused)                                                                            \
    ROW(g_mix)                                                                                     \
    ROW(h1_growth)                                                                                 \
    ROW(h2_sliding)                                                                                \
    ROW(i1_var_shuf)                                                                               \
    ROW(i2_var_zipf)                                                                               \
    ROW(j1_nested)                                                                                 \
    ROW(j2_disjoint)                                                                               \
    ROW(k_subreads4)                                                                               \
    ROW(l_dist8)                                                                                   \
    ROW(m_mixture)

#define NAME_ROW(name) #name,
const char *const trace_names[] = {TRACES(NAME_ROW) NULL};

#define MAKE_ROW(name) make_##name,
static void (*const makers[])(struct making *m) = {TRACES(MAKE_ROW)};

bool trace_make(struct trace *trace, const char *name, uint32_t n, uint64_t seed)
{
    unsigned row = 0;
    while (trace_names[row] != NULL && strcmp(trace_names[row], name) != 0) {
        row++;
    }
    if (trace_names[row] == NULL) {
        return false;
    }
    memset(trace, 0, sizeof(*trace));
    (void)snprintf(trace->name, sizeof(trace->name), "%s", name);
    trace->base_units = n;
    struct making m = {
        .trace = trace,
        .n = n,
        .random = {trace_fnv(TRACE_FNV_BEGIN, name, strlen(name)) + seed},
        .blocks = trace_take(2 * (size_t)n, sizeof(uint32_t)),
    };
    makers[row](&m);
    free(m.blocks);
    if (trace->block_count < n) {
        trace->block_count = n;
    }
    while (trace->first_counted < trace->request_count && trace->flags[trace->first_counted] == 0) {
        trace->first_counted++;
    }
    return true;
}

void trace_done(struct trace *trace)
{
    free(trace->blocks);
    free(trace->flags);
    free(trace->len_units);
    memset(trace, 0, sizeof(*trace));
}

uint64_t trace_checksum(const struct trace *trace)
{
    uint64_t hash =
        trace_fnv(TRACE_FNV_BEGIN, trace->blocks, trace->request_count * sizeof(*trace->blocks));
    hash = trace_fnv(hash, trace->flags, trace->request_count);
    if (trace->len_units != NULL) {
        hash = trace_fnv(hash, trace->len_units, trace->block_count * sizeof(*trace->len_units));
    }
    return hash;
}

uint32_t trace_len(const struct trace *trace, uint32_t block)
{
    return trace->len_units != NULL ? trace->len_units[block] : 1;
}
