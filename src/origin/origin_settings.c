// SPDX-License-Identifier: Apache-2.0
// Names settings in messages about an origin. Message texts are written with the names of the
// default origin's settings, such as origin.endpoint. A bucket's entry may set some of them for its
// own origin. In a message about that origin, the names of the entry's fields replace them. Pure;
// any thread.
#include "origin/origin_private.h"

static const char *const of_default[ORIGIN_SETTING_COUNT] = {
    [ORIGIN_SETTING_ENDPOINT] = "origin.endpoint",
    [ORIGIN_SETTING_REGION] = "origin.region",
    [ORIGIN_SETTING_ADDRESSING] = "origin.addressing",
    [ORIGIN_SETTING_CREDENTIALS] = "credentials.source",
};

const char *origin_settings_name(const struct origin_settings *settings, enum origin_setting which)
{
    check(which < ORIGIN_SETTING_COUNT);
    return settings->names[which] != NULL ? settings->names[which] : of_default[which];
}

// Returns the setting whose name begins the text; ORIGIN_SETTING_COUNT if there is none.
static unsigned setting_at(struct span text)
{
    unsigned which = 0;
    while (which < ORIGIN_SETTING_COUNT &&
           !span_starts_with(text, span_from_cstr(of_default[which]))) {
        which++;
    }
    return which;
}

void origin_settings_render(const struct origin_settings *settings, const char *text,
                            struct buf *out)
{
    struct span rest = span_from_cstr(text);
    while (rest.len > 0) {
        unsigned which = setting_at(rest);
        size_t taken = 1;
        if (which < ORIGIN_SETTING_COUNT) {
            buf_append_cstr(out, origin_settings_name(settings, which));
            taken = strlen(of_default[which]);
        } else {
            buf_append_char(out, rest.ptr[0]);
        }
        rest = (struct span){rest.ptr + taken, rest.len - taken};
    }
}

const struct origin_settings *origin_settings(const struct origin *origin)
{
    return &origin->options.settings;
}
