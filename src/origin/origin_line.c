// SPDX-License-Identifier: Apache-2.0
// Lines of calls that wait for a slot: one for each client, so that each client has its turn
// however many calls another one has. Runs on the worker.
//
// There are ORIGIN_LINES lines. A client has a line of its own while one of its calls waits. If
// none is left, it shares a line.
#include "origin/origin_private.h"

void origin_lines_init(struct origin_lines *lines)
{
    *lines = (struct origin_lines){.count = 0};
    for (unsigned i = 0; i < ORIGIN_LINES; i++) {
        list_init(&lines->calls[i]);
    }
}

static unsigned line_of(const struct origin_lines *lines, uint64_t client)
{
    unsigned unused = ORIGIN_LINES;
    for (unsigned i = 0; i < ORIGIN_LINES; i++) {
        bool is_taken = (lines->taken >> i & 1) != 0;
        if (is_taken && lines->client[i] == client) {
            return i;
        }
        unused = !is_taken && unused == ORIGIN_LINES ? i : unused;
    }
    return unused < ORIGIN_LINES ? unused : (unsigned)(client % ORIGIN_LINES);
}

void origin_lines_push(struct origin_lines *lines, struct origin_call *call, bool is_first)
{
    unsigned i = line_of(lines, call->client);
    if ((lines->taken >> i & 1) == 0) {
        lines->taken |= (uint64_t)1 << i;
        lines->client[i] = call->client;
    }
    call->line = i;
    if (is_first) {
        list_push_front(&lines->calls[i], &call->waiting);
    } else {
        list_push_back(&lines->calls[i], &call->waiting);
    }
    lines->count++;
}

struct origin_call *origin_lines_first(struct origin_lines *lines)
{
    if (lines->count == 0) {
        return NULL;
    }
    uint64_t later = lines->taken >> lines->turn << lines->turn;
    unsigned i = (unsigned)__builtin_ctzll(later != 0 ? later : lines->taken);
    return container_of(list_first(&lines->calls[i]), struct origin_call, waiting);
}

void origin_lines_remove(struct origin_lines *lines, struct origin_call *call)
{
    check(lines->count > 0 && list_node_linked(&call->waiting));
    list_remove(&call->waiting);
    lines->count--;
    if (list_empty(&lines->calls[call->line])) {
        lines->taken &= ~((uint64_t)1 << call->line);
    }
}

void origin_lines_next(struct origin_lines *lines, const struct origin_call *served)
{
    lines->turn = (served->line + 1) % ORIGIN_LINES;
}
