// SPDX-License-Identifier: Apache-2.0
// Sorts a folder's names with limited memory. A window has the lowest names above the last name of
// the previous window. If a window cannot grow while its folder is read, it drops its upper half.
// From then on it ignores every name above the lower half. When the walk has used all names of the
// window, it reads the folder again for the next window.
//
// The memory of a window is charged to BUDGET_FOLDERS. WINDOW_BYTES_LEAST is never refused, so with
// little memory a listing takes longer, but ends. One thread at a time.
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "origin/origin_directory_private.h"

#define WINDOW_BYTES_MAX (4u << 20) // The most bytes for the names of one window and their table.
#define WINDOW_BYTES_LEAST 65536u

void origin_directory_window_init(struct origin_directory_window *w)
{
    memset(w, 0, sizeof(*w));
    buf_init(&w->bytes, WINDOW_BYTES_MAX);
    buf_init(&w->from, ORIGIN_DIRECTORY_NAME_MAX);
    buf_init(&w->bound, ORIGIN_DIRECTORY_NAME_MAX);
}

void origin_directory_window_done(struct origin_directory_window *w)
{
    chunk_budget_discharge(BUDGET_FOLDERS, w->charged_bytes);
    buf_done(&w->bytes);
    buf_done(&w->from);
    buf_done(&w->bound);
    free(w->names);
}

struct span origin_directory_window_name(const struct origin_directory_window *w, size_t i)
{
    return (struct span){w->bytes.ptr + w->names[i].offset, w->names[i].len};
}

static int compare_names(const void *a, const void *b, void *bytes)
{
    const struct origin_directory_name *x = a, *y = b;
    const char *text = bytes;
    return span_compare((struct span){text + x->offset, x->len},
                        (struct span){text + y->offset, y->len});
}

void origin_directory_window_sort(struct origin_directory_window *w)
{
    if (w->name_count > 0) {
        qsort_r(w->names, w->name_count, sizeof(w->names[0]), compare_names, w->bytes.ptr);
    }
}

static void buf_set(struct buf *b, struct span s)
{
    b->len = 0;
    buf_append_span(b, s);
}

bool origin_directory_window_is_cut(const struct origin_directory_window *w)
{
    return w->bound.len > 0;
}

void origin_directory_window_advance(struct origin_directory_window *w)
{
    buf_set(&w->from, buf_span(&w->bound));
    w->bound.len = w->bytes.len = 0;
    w->name_count = w->next = 0;
}

// Returns how many bytes the window will have allocated after it has grown by `more` bytes of names
// and one table entry.
static size_t bytes_with(const struct origin_directory_window *w, size_t more)
{
    size_t bytes = w->bytes.cap, names = w->name_cap;
    if (w->bytes.len + more + 1 > bytes) {
        bytes = max_u64(2 * bytes, w->bytes.len + more + 1 + 64);
    }
    if (w->name_count == names) {
        names = max_u64(2 * names, 64);
    }
    return bytes + names * sizeof(w->names[0]);
}

static bool count_bytes(struct origin_directory_window *w, size_t bytes,
                        bool (*give_back)(void *ctx), void *ctx)
{
    if (bytes <= w->charged_bytes) {
        return true;
    }
    uint64_t more = bytes - w->charged_bytes;
    if (bytes <= WINDOW_BYTES_LEAST) {
        chunk_budget_charge(BUDGET_FOLDERS, more);
        w->charged_bytes = bytes;
        return true;
    }
    bool ok = false;
    while (!ok && bytes <= WINDOW_BYTES_MAX) {
        ok = chunk_budget_try_charge(BUDGET_FOLDERS, w->charged_bytes, more);
        if (!ok && !give_back(ctx)) {
            break;
        }
    }
    w->charged_bytes = ok ? bytes : w->charged_bytes;
    return ok;
}

// Drops the upper half of the window's names.
static enum err cut(struct origin_directory_window *w)
{
    struct buf kept;
    size_t count = w->name_count / 2;
    check(count > 0);
    origin_directory_window_sort(w);
    buf_init(&kept, WINDOW_BYTES_MAX);
    for (size_t i = 0; i < count; i++) {
        struct span name = origin_directory_window_name(w, i);
        w->names[i].offset = (uint32_t)kept.len;
        buf_append_span(&kept, name);
    }
    bool ok = buf_ok(&kept);
    if (ok) {
        memcpy(w->bytes.ptr, kept.ptr, kept.len);
        w->bytes.len = kept.len;
        w->name_count = count;
        buf_set(&w->bound, origin_directory_window_name(w, count - 1));
    }
    buf_done(&kept);
    return ok && buf_ok(&w->bound) ? ERR_OK : ERR_NO_MEMORY;
}

static bool is_wanted(const struct origin_directory_window *w, struct span name)
{
    return (w->from.len == 0 || span_compare(name, buf_span(&w->from)) > 0) &&
           (w->bound.len == 0 || span_compare(name, buf_span(&w->bound)) <= 0);
}

static enum err table_grow(struct origin_directory_window *w)
{
    if (w->name_count < w->name_cap) {
        return ERR_OK;
    }
    size_t cap = max_u64(2 * w->name_cap, 64);
    struct origin_directory_name *names = realloc(w->names, cap * sizeof(*names));
    if (names == NULL) {
        return ERR_NO_MEMORY;
    }
    w->names = names;
    w->name_cap = cap;
    return ERR_OK;
}

enum err origin_directory_window_add(struct origin_directory_window *w, struct span name,
                                     enum origin_directory_kind kind, bool (*give_back)(void *ctx),
                                     void *ctx)
{
    if (!is_wanted(w, name)) {
        return ERR_OK;
    }
    while (!count_bytes(w, bytes_with(w, name.len), give_back, ctx)) {
        enum err err = cut(w);
        if (err != ERR_OK || !is_wanted(w, name)) {
            return err;
        }
    }
    enum err err = table_grow(w);
    if (err != ERR_OK) {
        return err;
    }
    w->names[w->name_count] = (struct origin_directory_name){
        .offset = (uint32_t)w->bytes.len, .len = (uint16_t)name.len, .kind = (uint8_t)kind};
    buf_append_span(&w->bytes, name);
    w->name_count += buf_ok(&w->bytes);
    return buf_ok(&w->bytes) ? ERR_OK : ERR_NO_MEMORY;
}
