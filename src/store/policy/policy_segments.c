// SPDX-License-Identifier: Apache-2.0
// Keeps the starts and stamps of each segment's runs, in ascending order of start, so that a binary
// search finds a run. A segment stores them in pages of 16 runs. Up to 64 runs are in its four root
// pages. With more runs, each root is a tree of pages that have 32 children each. So memory is
// proportional to the number of runs, whether a segment has three runs or fifty thousand.
//
// Layout of the region: table of segments | array of sealed segments | pages. Page number 0 means
// "no page". Free pages form a list. The pages are last, so that the region can grow with the runs.
#include "store/policy/policy_private.h"

#define GROW_PARTS 64u // each step of growth maps 1/GROW_PARTS of page_max
#define GROW_PAGES_MIN 256u
#define HEIGHT_MAX 4u // 64 * 32^4 runs: more than 2^25

static_assert(sizeof(union policy_page) == 128, "a page is two cache lines");

// Returns the number of pages for `run_max` runs in `segment_max` segments. It assumes that the
// last page of each segment is half full, and that each segment has at least one page. It includes
// the inner pages of the trees.
static uint32_t page_count_max(uint32_t segment_max, uint32_t run_max)
{
    uint64_t used = run_max / POLICY_PAGE_RUNS + segment_max / 2;
    uint64_t leaves = max_u64(used, segment_max) + POLICY_PAGE_ROOTS;
    return (uint32_t)min_u64(UINT32_MAX, 1 + leaves + leaves / (POLICY_PAGE_CHILDREN - 1));
}

size_t policy_segments_bytes(uint32_t segment_max, uint32_t run_max)
{
    return align_up_u64(segment_max * sizeof(struct policy_segment), 64) +
           align_up_u64(segment_max * sizeof(struct policy_sealed), 64) +
           (size_t)page_count_max(segment_max, run_max) * sizeof(union policy_page);
}

void policy_segments_init(struct policy_segments *segments, uint32_t segment_max, uint32_t run_max,
                          void *region)
{
    char *at = region;
    check(segment_max > 0);
    check(region != NULL);
    segments->table = (struct policy_segment *)(void *)at;
    at += align_up_u64(segment_max * sizeof(struct policy_segment), 64);
    segments->sealed = (struct policy_sealed *)(void *)at;
    at += align_up_u64(segment_max * sizeof(struct policy_sealed), 64);
    segments->pages = (union policy_page *)(void *)at;
    segments->table_size = segment_max;
    segments->page_count = segments->page_max = page_count_max(segment_max, run_max);
    segments->page_used = 1;
    check(segments->page_used < segments->page_count);
}

void policy_segments_may_grow(struct policy_segments *segments,
                              bool (*grow)(void *ctx, size_t bytes), void *ctx)
{
    segments->page_count =
        (uint32_t)min_u64(segments->page_max, page_count_max(segments->table_size, 0));
    check(segments->page_used <= segments->page_count);
    segments->grow = grow;
    segments->grow_ctx = ctx;
}

// --- pages ---------------------------------------------------------------------------------------

static bool pages_grow(struct policy_segments *segments)
{
    check(segments->page_count <= segments->page_max);
    uint64_t step = max_u64(GROW_PAGES_MIN, segments->page_max / GROW_PARTS);
    uint32_t wanted = (uint32_t)min_u64(segments->page_max, segments->page_count + step);
    size_t before = (size_t)((char *)segments->pages - (char *)segments->table);
    if (segments->grow == NULL || wanted == segments->page_count ||
        !segments->grow(segments->grow_ctx, before + wanted * sizeof(union policy_page))) {
        return false;
    }
    segments->page_count = wanted;
    return true;
}

static uint32_t page_take(struct policy_segments *segments)
{
    uint32_t page = segments->page_free;
    if (page != 0) {
        check(page < segments->page_used);
        segments->page_free = segments->pages[page].children[0];
    } else if (segments->page_used < segments->page_count || pages_grow(segments)) {
        page = segments->page_used++;
    } else {
        return 0;
    }
    check(page < segments->page_count);
    memset(&segments->pages[page], 0, sizeof(segments->pages[page]));
    return page;
}

static void page_give(struct policy_segments *segments, uint32_t page)
{
    check(page != 0 && page < segments->page_used);
    segments->pages[page].children[0] = segments->page_free;
    segments->page_free = page;
}

// Returns how many runs fit below one root of a tree of this height.
static uint32_t root_runs(unsigned height)
{
    return POLICY_PAGE_RUNS << (5 * height);
}

struct policy_run *policy_segments_run(const struct policy_segments *segments,
                                       const struct policy_segment *segment, uint32_t index)
{
    check(index <= segment->run_count); // index run_count is the run that is being appended
    uint32_t page = segment->pages[index >> (4 + 5 * segment->height)];
    for (unsigned height = segment->height; height-- > 0;) {
        page = segments->pages[page].children[index >> (4 + 5 * height) & 31];
    }
    check(page != 0);
    return &segments->pages[page].runs[index & (POLICY_PAGE_RUNS - 1)];
}

// Adds a level to the tree. A new page gets the four roots as its children and becomes the first
// root.
static bool segment_grow(struct policy_segments *segments, struct policy_segment *segment)
{
    uint32_t page = segment->height < HEIGHT_MAX ? page_take(segments) : 0;
    if (page == 0) {
        return false;
    }
    memcpy(segments->pages[page].children, segment->pages, sizeof(segment->pages));
    memset(segment->pages, 0, sizeof(segment->pages));
    segment->pages[0] = page;
    segment->height++;
    return true;
}

// Adds the pages for the run with this index, which is the first run of a page.
static bool segment_extend(struct policy_segments *segments, struct policy_segment *segment,
                           uint32_t index)
{
    check(index % POLICY_PAGE_RUNS == 0);
    if (index >= POLICY_PAGE_ROOTS * root_runs(segment->height) &&
        !segment_grow(segments, segment)) {
        return false;
    }
    check(index < POLICY_PAGE_ROOTS * root_runs(segment->height));
    uint32_t *place = &segment->pages[index >> (4 + 5 * segment->height)];
    for (unsigned height = segment->height;; height--) {
        if (*place == 0) {
            *place = page_take(segments); // if no lower page is free, this page stays, and is empty
        }
        if (*place == 0) {
            return false;
        }
        if (height == 0) {
            return true;
        }
        place = &segments->pages[*place].children[index >> (4 + 5 * (height - 1)) & 31];
    }
}

static void segment_give_pages(struct policy_segments *segments, struct policy_segment *segment)
{
    struct {
        uint32_t page;
        unsigned height;
    } todo[POLICY_PAGE_ROOTS + HEIGHT_MAX * POLICY_PAGE_CHILDREN]; // visit the tree depth first
    unsigned count = 0;
    for (unsigned i = 0; i < POLICY_PAGE_ROOTS; i++) {
        if (segment->pages[i] != 0) {
            todo[count].page = segment->pages[i];
            todo[count++].height = segment->height;
        }
    }
    while (count > 0) { // the loop visits each page of the segment once
        uint32_t page = todo[--count].page;
        unsigned height = todo[count].height;
        for (unsigned i = 0; height > 0 && i < POLICY_PAGE_CHILDREN; i++) {
            if (segments->pages[page].children[i] != 0) {
                check(count < ARRAY_LEN(todo));
                todo[count].page = segments->pages[page].children[i];
                todo[count++].height = height - 1;
            }
        }
        page_give(segments, page);
    }
}

// --- segments ------------------------------------------------------------------------------------

struct policy_segment *policy_segments_find(const struct policy_segments *segments, uint32_t number)
{
    struct policy_segment *segment = &segments->table[number % segments->table_size];
    return number != 0 && segment->number == number ? segment : NULL;
}

struct policy_segment *policy_segments_begin(struct policy_segments *segments, uint32_t number)
{
    struct policy_segment *segment = &segments->table[number % segments->table_size];
    if (number == 0 || segment->number != 0) {
        return NULL;
    }
    check(segment->state == POLICY_SEGMENT_NONE && segment->run_count == 0);
    *segment = (struct policy_segment){.number = number, .state = POLICY_SEGMENT_OPEN};
    return segment;
}

// Returns the index of the first run that begins after `start`.
static uint32_t segment_search(const struct policy_segments *segments,
                               const struct policy_segment *segment, uint32_t start)
{
    uint32_t low = 0, high = segment->run_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (policy_segments_run(segments, segment, middle)->start > start) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

uint32_t policy_segments_run_len(const struct policy_segments *segments,
                                 const struct policy_segment *segment, uint32_t index)
{
    check(index < segment->run_count);
    uint32_t next = index + 1 < segment->run_count
                        ? policy_segments_run(segments, segment, index + 1)->start
                        : segment->end;
    return next - policy_segments_run(segments, segment, index)->start;
}

struct policy_run *policy_segments_run_at(const struct policy_segments *segments,
                                          const struct policy_segment *segment, uint32_t start,
                                          uint32_t *ret_index)
{
    if (start >= segment->end) {
        return NULL;
    }
    check(segment->run_count > 0); // `end` is above 0, so the segment has runs
    // Guess the index from the offset. The guess is right if all runs have the same length.
    uint32_t guess = (uint32_t)((uint64_t)start * segment->run_count / segment->end);
    bool is_there = policy_segments_run(segments, segment, guess)->start == start;
    uint32_t behind = is_there ? guess + 1 : segment_search(segments, segment, start);
    if (behind == 0) {
        return NULL;
    }
    struct policy_run *run = policy_segments_run(segments, segment, behind - 1);
    if (run->start != start || run->stamp == POLICY_STAMP_GONE) {
        return NULL;
    }
    *ret_index = behind - 1;
    return run;
}

// Adds a run to the bytes of its group, which always equal the sum of the group's runs.
static void segment_count(struct policy_segments *segments, struct policy_segment *segment,
                          uint32_t stamp, uint32_t len)
{
    if (stamp != POLICY_STAMP_GONE) {
        unsigned group = policy_stamp_group(stamp);
        segments->group_bytes[group] += len;
        segment->pinned_count += segments->pinned_groups >> group & 1;
    }
}

static void segment_discount(struct policy_segments *segments, struct policy_segment *segment,
                             uint32_t stamp, uint32_t len)
{
    if (stamp != POLICY_STAMP_GONE) {
        unsigned group = policy_stamp_group(stamp);
        check(segments->group_bytes[group] >= len);
        segments->group_bytes[group] -= len;
        segment->pinned_count -= segments->pinned_groups >> group & 1;
    }
}

// Corrects the bytes of a group when the length of one of its runs has changed. A run reaches to
// the start of the next run, so its length changes when a run is inserted behind it.
static void segment_count_again(struct policy_segments *segments, uint32_t stamp, uint32_t len,
                                uint32_t len_before)
{
    if (stamp != POLICY_STAMP_GONE) {
        segments->group_bytes[policy_stamp_group(stamp)] += (uint64_t)len - len_before;
    }
}

bool policy_segments_append(struct policy_segments *segments, struct policy_segment *segment,
                            uint32_t start, uint32_t len, uint32_t stamp)
{
    check(segment->number != 0);
    uint32_t count = segment->run_count;
    if (count % POLICY_PAGE_RUNS == 0 && !segment_extend(segments, segment, count)) {
        return false;
    }
    uint32_t at = count;
    // Runs of several workers may arrive in another order than their offsets in the segment.
    for (; at > 0; at--) {
        struct policy_run *before = policy_segments_run(segments, segment, at - 1);
        if (before->start < start) {
            break;
        }
        *policy_segments_run(segments, segment, at) = *before;
    }
    *policy_segments_run(segments, segment, at) = (struct policy_run){start, stamp};
    uint32_t behind = at < count ? policy_segments_run(segments, segment, at + 1)->start : 0;
    uint32_t end_before = at < count ? behind : segment->end;
    segment->run_count++;
    if (at == count && start + len > segment->end) {
        segment->end = start + len;
    }
    if (at > 0) {
        const struct policy_run *before = policy_segments_run(segments, segment, at - 1);
        segment_count_again(segments, before->stamp, start - before->start,
                            end_before - before->start);
    }
    segment_count(segments, segment, stamp, policy_segments_run_len(segments, segment, at));
    return true;
}

void policy_segments_set_stamp(struct policy_segments *segments, struct policy_segment *segment,
                               uint32_t index, uint32_t stamp)
{
    check(stamp == POLICY_STAMP_GONE || policy_stamp_class(stamp) < POLICY_CLASSES);
    struct policy_run *run = policy_segments_run(segments, segment, index);
    uint32_t len = policy_segments_run_len(segments, segment, index);
    segment_discount(segments, segment, run->stamp, len);
    segment_count(segments, segment, stamp, len);
    run->stamp = stamp;
}

void policy_segments_set_state(struct policy_segments *segments, struct policy_segment *segment,
                               enum policy_segment_state state)
{
    uint32_t place = (uint32_t)(segment - segments->table);
    check(place < segments->table_size);
    if (segment->state == POLICY_SEGMENT_SEALED && state != POLICY_SEGMENT_SEALED) {
        check(segment->sealed_at < segments->sealed_count);
        check(segments->sealed[segment->sealed_at].at == place);
        struct policy_sealed last = segments->sealed[--segments->sealed_count];
        segments->sealed[segment->sealed_at] = last;
        segments->table[last.at].sealed_at = segment->sealed_at;
    } else if (segment->state != POLICY_SEGMENT_SEALED && state == POLICY_SEGMENT_SEALED) {
        check(segments->sealed_count < segments->table_size);
        segment->sealed_at = segments->sealed_count;
        segments->sealed[segments->sealed_count++] = (struct policy_sealed){place, 0};
    }
    segment->state = (uint8_t)state;
}

void policy_segments_free(struct policy_segments *segments, struct policy_segment *segment)
{
    check(segment->number != 0);
    policy_segments_set_state(segments, segment, POLICY_SEGMENT_NONE);
    for (uint32_t i = 0; i < segment->run_count; i++) { // most runs are gone already
        uint32_t stamp = policy_segments_run(segments, segment, i)->stamp;
        if (stamp != POLICY_STAMP_GONE) {
            segment_discount(segments, segment, stamp,
                             policy_segments_run_len(segments, segment, i));
        }
    }
    segment_give_pages(segments, segment);
    *segment = (struct policy_segment){0};
}

void policy_segments_sweep(struct policy_segments *segments, struct policy_segment *segment,
                           uint32_t now_tick)
{
    for (uint32_t i = 0; i < segment->run_count; i++) {
        struct policy_run *run = policy_segments_run(segments, segment, i);
        if (run->stamp != POLICY_STAMP_GONE &&
            policy_stamp_age(run->stamp, now_tick) > POLICY_AGE_MAX) {
            run->stamp = policy_stamp(now_tick - POLICY_AGE_MAX, policy_stamp_class(run->stamp),
                                      policy_stamp_group(run->stamp));
        }
    }
}
