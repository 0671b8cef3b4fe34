// SPDX-License-Identifier: Apache-2.0
// Traces from files. A file that is not a trace is refused, with the line and the reason, because
// people would believe the figures of any other file.
#include "traces_private.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define LINE_MAX_BYTES 256u
#define FLAGS_ALL (TRACE_COUNTS | TRACE_COUNTS2 | TRACE_PART)

// Maps block numbers of any size to small ones, in the order of their first request.
struct numbering {
    uint64_t *numbers;
    uint32_t *indices; // index + 1; 0: free
    uint32_t mask, count;
};

static uint32_t numbering_place(const struct numbering *numbering, uint64_t number)
{
    uint32_t at = (uint32_t)trace_fnv(TRACE_FNV_BEGIN, &number, sizeof(number)) & numbering->mask;
    while (numbering->indices[at] != 0 && numbering->numbers[at] != number) {
        at = (at + 1) & numbering->mask;
    }
    return at;
}

static void numbering_grow(struct numbering *numbering)
{
    struct numbering old = *numbering;
    uint32_t size = old.mask == 0 ? 1u << 16 : (old.mask + 1) * 2;
    numbering->numbers = trace_take(size, sizeof(*numbering->numbers));
    numbering->indices = trace_take(size, sizeof(*numbering->indices));
    numbering->mask = size - 1;
    for (uint32_t i = 0; old.mask != 0 && i <= old.mask; i++) {
        if (old.indices[i] != 0) {
            uint32_t at = numbering_place(numbering, old.numbers[i]);
            numbering->numbers[at] = old.numbers[i];
            numbering->indices[at] = old.indices[i];
        }
    }
    free(old.numbers);
    free(old.indices);
}

static uint32_t numbering_index(struct numbering *numbering, uint64_t number)
{
    if (numbering->mask == 0 || numbering->count * 2 > numbering->mask) {
        numbering_grow(numbering);
    }
    uint32_t at = numbering_place(numbering, number);
    if (numbering->indices[at] == 0) {
        numbering->numbers[at] = number;
        numbering->indices[at] = ++numbering->count;
    }
    return numbering->indices[at] - 1;
}

// Parses the numbers of the line, at most `max` of them into ret_numbers. Returns their count; -1:
// the line holds something else.
static int line_parse(const char *line, int max, uint64_t *ret_numbers)
{
    int count = 0;
    for (line += strspn(line, " \t"); *line != 0; line += strspn(line, " \t,"), count++) {
        char *end;
        if (!isdigit((unsigned char)*line) || count == max) {
            return -1;
        }
        errno = 0;
        ret_numbers[count] = strtoull(line, &end, 10);
        if (errno != 0 || strchr(" \t,", *end) == NULL) { // the end of the line among them
            return -1;
        }
        line = end;
    }
    return count;
}

// The longest request of a block is its length.
static void add_request(struct trace *trace, struct numbering *numbering, uint32_t *len_cap,
                        const uint64_t *numbers)
{
    uint32_t block = numbering_index(numbering, numbers[0]);
    if (block >= *len_cap) {
        *len_cap = (block + 1) * 2;
        trace->len_units = realloc(trace->len_units, *len_cap * sizeof(*trace->len_units));
        check(trace->len_units != NULL);
    }
    if (block >= trace->block_count) {
        trace->len_units[block] = 0;
    }
    if (trace->len_units[block] < numbers[1]) {
        trace->len_units[block] = (uint32_t)numbers[1];
    }
    trace_add(trace, block, (unsigned)numbers[2]);
}

// NULL: it was taken.
static const char *take_first_line(struct trace *trace, const char *line)
{
    uint64_t number;
    if (line_parse(line, 1, &number) != 1) {
        return "the first line has one number, the bytes that a share of 1 stands for";
    }
    trace->base_units = number;
    return number == 0               ? "a share of 1 stands for more than 0 bytes"
           : number > TRACE_BASE_MAX ? "a share of 1 stands for at most 2^50 bytes"
                                     : NULL;
}

static const char *take_line(struct trace *trace, struct numbering *numbering, uint32_t *len_cap,
                             const char *line)
{
    uint64_t numbers[3];
    int count = line_parse(line, 3, numbers);
    if (count == 0) {
        return NULL; // nothing stands there
    }
    if (count != 3) {
        return "a request has three numbers: block, bytes of it, and 1 if it counts, else 0";
    }
    if (numbers[1] == 0 || numbers[1] > TRACE_BLOCK_BYTES_MAX) {
        return "a block has from 1 to 2^30 bytes";
    }
    if (numbers[2] > FLAGS_ALL) {
        return "the third number is a sum of 1, 2 and 4";
    }
    if (trace->request_count == TRACE_REQUESTS_MAX) {
        return "that are too many requests";
    }
    add_request(trace, numbering, len_cap, numbers);
    return NULL;
}

static const char *read_lines(struct trace *trace, FILE *file, unsigned *ret_line)
{
    struct numbering numbering = {0};
    uint32_t len_cap = 0;
    char line[LINE_MAX_BYTES];
    const char *wrong = NULL;
    while (wrong == NULL && fgets(line, sizeof(line), file) != NULL) {
        size_t len = strlen(line);
        ++*ret_line;
        if (len == 0 || (line[len - 1] != '\n' && !feof(file))) {
            wrong = "that is no line of text, or a very long one";
            break;
        }
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r')) {
            line[--len] = 0;
        }
        wrong = *ret_line == 1 ? take_first_line(trace, line)
                               : take_line(trace, &numbering, &len_cap, line);
    }
    free(numbering.numbers);
    free(numbering.indices);
    return wrong != NULL || !ferror(file) ? wrong : strerror(errno);
}

const char *trace_read(struct trace *trace, const char *path, unsigned *ret_line)
{
    memset(trace, 0, sizeof(*trace));
    const char *base = strrchr(path, '/');
    (void)snprintf(trace->name, sizeof(trace->name), "%s", base != NULL ? base + 1 : path);
    *ret_line = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return strerror(errno);
    }
    const char *wrong = read_lines(trace, file, ret_line);
    (void)fclose(file); // only read
    while (trace->first_counted < trace->request_count &&
           (trace->flags[trace->first_counted] & TRACE_COUNTS) == 0) {
        trace->first_counted++;
    }
    if (wrong == NULL) {
        wrong = *ret_line == 0                                 ? "it is empty"
                : trace->request_count == 0                    ? "there are no requests in it"
                : trace->first_counted == trace->request_count ? "none of its requests counts"
                                                               : NULL;
    }
    if (wrong != NULL) {
        trace_done(trace);
    }
    return wrong;
}
