// SPDX-License-Identifier: Apache-2.0
// Errors and warnings of a load, and allocations from the arena of its result. All files of the
// room use these functions. One thread.
#include "config/config_private.h"

#include <stdio.h>

static PRINTF_LIKE(4, 0) void report(struct buf *out, const char *where, const char *level,
                                     const char *format, va_list args)
{
    char text[1024];
    (void)vsnprintf(text, sizeof(text), format, args); // truncates a longer message
    buf_printf(out, "%s: %s: %s\n", where, level, text);
}

void config_loader_error(struct loader *l, const char *where, const char *format, ...)
{
    l->error_count++;
    if (l->error_count > CONFIG_ERRORS_MAX) {
        return;
    }
    va_list args;
    va_start(args, format);
    report(l->errors, where, "error", format, args);
    va_end(args);
}

void config_loader_warning(struct loader *l, const char *where, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    report(&l->warnings, where, "warning", format, args);
    va_end(args);
}

void *config_loader_alloc(struct loader *l, size_t size)
{
    void *memory = arena_alloc(l->arena, size);
    check(memory != NULL);
    return memory;
}

char *config_loader_cstr(struct loader *l, struct span s)
{
    char *copy = arena_cstr(l->arena, s);
    check(copy != NULL);
    return copy;
}
