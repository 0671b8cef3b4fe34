// SPDX-License-Identifier: Apache-2.0
// Any text as a value of each kind: no crash. It is refused with a reason, or understood. A size
// that we print means the same when it is read again.
#include "config/config_private.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_amounts(struct span s)
{
    char why[WHY_MAX], text[WHY_MAX];
    uint64_t value, again;
    struct config_size size;
    double ratio;
    unsigned percent;
    if (config_value_parse_bytes(s, &value, why)) {
        config_value_format_bytes(value, text);
        check(config_value_parse_bytes(span_from_cstr(text), &again, why) && again == value);
    } else {
        check(memchr(why, '\0', WHY_MAX) != NULL);
    }
    (void)config_value_parse_ms(s, &value, why);
    (void)config_value_parse_block_size(s, &value, why);
    (void)config_value_parse_size(s, &size, why);
    (void)config_value_parse_rate(s, &value, why);
    (void)config_value_parse_count(s, &value, why);
    check(!config_value_parse_percent(s, &percent, why) || percent <= 100);
    check(!config_value_parse_ratio(s, &ratio, why) || ratio >= 0);
}

static void check_endpoint(struct span s)
{
    char why[WHY_MAX];
    struct buf form;
    if (config_value_is_endpoint(s, why)) {
        buf_init(&form, s.len + 1);
        config_value_endpoint_render(s, &form);
        check(buf_ok(&form) && form.len <= s.len);
        buf_done(&form);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char why[WHY_MAX];
    unsigned choice;
    struct config_listen listen;
    struct span s = {(const char *)bytes, len};
    struct loader loader = {.arena = arena_new(1 << 20)};
    if (len < 4096) {
        check_amounts(s);
        check(!config_value_parse_choice(s, "open|verify", &choice, why) || choice < 2);
        (void)config_value_parse_listen(&loader, s, &listen, why);
        check_endpoint(s);
        (void)config_value_is_glob(s, why);
        (void)settings_suggest_key(s);
        check(settings_find(s) <= SETTING_COUNT_);
    }
    arena_free(loader.arena);
    return 0;
}
