// SPDX-License-Identifier: Apache-2.0
// Scripted fault injection. loop.h describes the script, which comes from the environment or from
// disk_fault_set(). A rule counts the operations of its kind over all workers. For system calls
// outside the disk interface, the kind is a name with a dot in it. Each injected fault appends a
// line "op:what" to the file that FOREBAY_FAULT_TALLY names. Any thread. Not in release builds,
// because a lock guards the rules.
#include "loop/disk_fault.h"

#ifdef FOREBAY_FAULTS

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULES_MAX 32
#define KIND_ANY 100
#define KIND_NAMED 101
#define NAME_MAX_LEN 32

enum rule_when { WHEN_EVERY, WHEN_NTH, WHEN_FROM, WHEN_FILE };

struct rule {
    int kind; // An enum disk_op_kind, KIND_ANY or KIND_NAMED.
    char name[NAME_MAX_LEN];
    char what[NAME_MAX_LEN];
    enum rule_when when;
    uint64_t n, seen;
    // When the simulated device will have finished its current operations; for bytes_per_second.
    uint64_t busy_until_us;
    char path[256];
    struct disk_fault fault;
};

static struct {
    pthread_mutex_t mutex;
    bool is_loaded;
    unsigned count;
    struct rule rules[RULES_MAX];
} hook = {.mutex = PTHREAD_MUTEX_INITIALIZER};

// 0: there are no rules, so a build with faults but without a script skips the lock.
static atomic_int hook_has_rules = -1; // -1: the script was not read yet.

static bool kind_parse(struct span s, int *ret_kind)
{
    static const struct {
        const char *name;
        int kind;
    } names[] = {
        {"read", DISK_READ},           {"write", DISK_WRITE},
        {"sync", DISK_SYNC},           {"open", DISK_OPEN},
        {"fallocate", DISK_FALLOCATE}, {"unlink", DISK_UNLINK},
        {"push", DISK_PUSH},           {"any", KIND_ANY},
    };
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        if (span_equal_cstr(s, names[i].name)) {
            *ret_kind = names[i].kind;
            return true;
        }
    }
    if (span_find(s, '.') < s.len) {
        *ret_kind = KIND_NAMED;
        return true;
    }
    return false;
}

static bool name_copy(struct span s, char ret_name[NAME_MAX_LEN])
{
    if (s.len == 0 || s.len >= NAME_MAX_LEN) {
        return false;
    }
    memcpy(ret_name, s.ptr, s.len);
    ret_name[s.len] = '\0';
    return true;
}

static bool when_parse(struct span s, struct rule *rule)
{
    struct span file = SPAN("file=");
    if (span_starts_with(s, file)) {
        s.ptr += file.len;
        s.len -= file.len;
        rule->when = WHEN_FILE;
        return s.len > 0 && (size_t)snprintf(rule->path, sizeof(rule->path), "%.*s", (int)s.len,
                                             s.ptr) < sizeof(rule->path);
    }
    rule->when = WHEN_NTH;
    if (s.len > 0 && s.ptr[0] == '/') {
        rule->when = WHEN_EVERY;
        s.ptr++;
        s.len--;
    } else if (s.len > 0 && s.ptr[s.len - 1] == '+') {
        rule->when = WHEN_FROM;
        s.len--;
    }
    return span_to_u64(s, &rule->n) && rule->n > 0;
}

static bool what_parse(struct span what, struct span arg, struct disk_fault *ret_fault)
{
    static const struct {
        const char *word;
        int errno_value;
    } errors[] = {{"eio", EIO},       {"enospc", ENOSPC}, {"erofs", EROFS},
                  {"emfile", EMFILE}, {"eacces", EACCES}, {"einval", EINVAL}};
    for (unsigned i = 0; i < ARRAY_LEN(errors); i++) {
        if (span_equal_cstr(what, errors[i].word)) {
            *ret_fault =
                (struct disk_fault){.what = DISK_FAULT_ERRNO, .errno_value = errors[i].errno_value};
            return arg.len == 0;
        }
    }
    if (span_equal_cstr(what, "short")) {
        *ret_fault = (struct disk_fault){.what = DISK_FAULT_SHORT};
    } else if (span_equal_cstr(what, "slow")) {
        *ret_fault = (struct disk_fault){.what = DISK_FAULT_SLOW, .delay_ms = 10};
        return arg.len == 0 ||
               (span_to_u64(arg, &ret_fault->delay_ms) && ret_fault->delay_ms < 600000);
    } else if (span_equal_cstr(what, "hold")) {
        *ret_fault = (struct disk_fault){.what = DISK_FAULT_HOLD, .delay_ms = DISK_FAULT_HOLD_MS};
    } else if (span_equal_cstr(what, "rate")) {
        *ret_fault = (struct disk_fault){.what = DISK_FAULT_SLOW};
        return span_to_u64(arg, &ret_fault->bytes_per_second) && ret_fault->bytes_per_second > 0;
    } else {
        return false;
    }
    return arg.len == 0;
}

static bool rule_parse(struct span text, struct rule *rule)
{
    struct span kind = {0}, when = {0}, what = {0}, arg = {0};
    *rule = (struct rule){0};
    return span_split(&text, ':', &kind) && span_split(&text, ':', &when) &&
           span_split(&text, ':', &what) && (!span_split(&text, ':', &arg) || text.ptr == NULL) &&
           kind_parse(kind, &rule->kind) && name_copy(kind, rule->name) &&
           name_copy(what, rule->what) && when_parse(when, rule) &&
           what_parse(what, arg, &rule->fault);
}

static void hook_load_locked(const char *script)
{
    hook.count = 0;
    hook.is_loaded = true;
    struct span rest = span_from_cstr(script);
    struct span piece;
    while (rest.len > 0 && span_split(&rest, ',', &piece)) {
        if (hook.count == RULES_MAX || !rule_parse(piece, &hook.rules[hook.count])) {
            // Abort: if a typing error disabled the fault, the test would prove nothing.
            fprintf(stderr, "disk fault script not understood at: %.*s\n", (int)piece.len,
                    piece.ptr);
            abort();
        }
        hook.count++;
    }
    atomic_store(&hook_has_rules, hook.count > 0 ? 1 : 0);
}

void disk_fault_set(const char *script)
{
    check(pthread_mutex_lock(&hook.mutex) == 0);
    hook_load_locked(script);
    check(pthread_mutex_unlock(&hook.mutex) == 0);
}

static bool rule_strikes(struct rule *rule)
{
    rule->seen++;
    switch (rule->when) {
    case WHEN_EVERY:
        return rule->seen % rule->n == 0;
    case WHEN_NTH:
        return rule->seen == rule->n;
    case WHEN_FROM:
        return rule->seen >= rule->n;
    case WHEN_FILE:
        return access(rule->path, F_OK) == 0;
    }
    return false;
}

// Returns the rule's fault. With bytes_per_second, its delay simulates a device that does one
// operation after the other.
static struct disk_fault rule_paced(struct rule *rule, uint64_t bytes)
{
    struct disk_fault fault = rule->fault;
    if (fault.bytes_per_second > 0) {
        uint64_t now_us = clock_monotonic_us();
        rule->busy_until_us = max_u64(rule->busy_until_us, now_us);
        rule->busy_until_us += bytes * 1000000 / fault.bytes_per_second;
        fault.delay_ms = (rule->busy_until_us - now_us) / 1000;
        fault.what = fault.delay_ms > 0 ? fault.what : DISK_FAULT_NONE;
    }
    return fault;
}

static void tally_locked(const struct rule *rule)
{
    static int fd = -1;
    const char *path = getenv("FOREBAY_FAULT_TALLY");
    if (path == NULL) {
        return;
    }
    if (fd < 0) {
        fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    // If this write fails, the test that counts the lines fails.
    (void)dprintf(fd, "%s:%s\n", rule->name, rule->what);
}

static bool rule_is_of(const struct rule *rule, int kind, const char *name)
{
    return kind == KIND_NAMED ? rule->kind == kind && strcmp(rule->name, name) == 0
                              : rule->kind == kind || rule->kind == KIND_ANY;
}

static struct disk_fault fault_next(int kind, const char *name, uint64_t bytes)
{
    struct disk_fault fault = {0};
    if (atomic_load_explicit(&hook_has_rules, memory_order_relaxed) == 0) {
        return fault;
    }
    check(pthread_mutex_lock(&hook.mutex) == 0);
    if (!hook.is_loaded) {
        hook_load_locked(getenv("FOREBAY_DISK_FAULTS"));
    }
    for (unsigned i = 0; i < hook.count; i++) {
        struct rule *rule = &hook.rules[i];
        if (rule_is_of(rule, kind, name) && rule_strikes(rule) && fault.what == DISK_FAULT_NONE) {
            fault = rule_paced(rule, bytes);
            tally_locked(rule);
        }
    }
    check(pthread_mutex_unlock(&hook.mutex) == 0);
    return fault;
}

struct disk_fault disk_fault_next(enum disk_op_kind kind, uint64_t bytes)
{
    return fault_next((int)kind, NULL, bytes);
}

static bool name_is_held(const char *name)
{
    bool is_held = false;
    check(pthread_mutex_lock(&hook.mutex) == 0);
    for (unsigned i = 0; i < hook.count; i++) {
        const struct rule *rule = &hook.rules[i];
        is_held |= rule->fault.what == DISK_FAULT_HOLD && rule->when == WHEN_FILE &&
                   rule_is_of(rule, KIND_NAMED, name) && access(rule->path, F_OK) == 0;
    }
    check(pthread_mutex_unlock(&hook.mutex) == 0);
    return is_held;
}

int disk_fault_errno(const char *name)
{
    struct disk_fault fault = fault_next(KIND_NAMED, name, 0);
    while (fault.what == DISK_FAULT_HOLD && name_is_held(name)) {
        (void)poll(NULL, 0, DISK_FAULT_HOLD_MS); // an interruption only shortens the pause
    }
    if (fault.what == DISK_FAULT_SLOW) {
        (void)poll(NULL, 0, (int)fault.delay_ms); // an interruption only shortens the delay
    }
    return fault.what == DISK_FAULT_ERRNO ? fault.errno_value : 0;
}

bool disk_fault_is_held(enum disk_op_kind kind)
{
    bool is_held = false;
    check(pthread_mutex_lock(&hook.mutex) == 0);
    for (unsigned i = 0; i < hook.count; i++) {
        const struct rule *rule = &hook.rules[i];
        is_held |= rule->fault.what == DISK_FAULT_HOLD && rule->when == WHEN_FILE &&
                   (rule->kind == KIND_ANY || rule->kind == (int)kind) &&
                   access(rule->path, F_OK) == 0;
    }
    check(pthread_mutex_unlock(&hook.mutex) == 0);
    return is_held;
}

#endif
