// SPDX-License-Identifier: Apache-2.0
// Pins of the control interface. Calls arrive on the admin thread. The thread on which a change
// ends answers its call.
#include "control/control_private.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define TTL_S_MAX (100ll * 365 * 24 * 3600)

struct pin_call {
    struct admin_call *call;
    struct store *store;
    unsigned count;
    struct proxy_pin items[];
};

static json_t *pin_json(const struct proxy_pin *pin)
{
    struct buf uri;
    buf_init(&uri, 8192);
    buf_append_cstr(&uri, "s3://");
    buf_append_span(&uri, pin->bucket);
    buf_append_char(&uri, '/');
    buf_append_span(&uri, pin->key);
    bool is_plain = pin->key.len == 0 || pin->key.ptr[pin->key.len - 1] == '/';
    if (pin->is_prefix && !is_plain) {
        buf_append_char(&uri, '*');
    }
    int64_t now_s = clock_wall_s(), until_s = (int64_t)pin->until_s;
    json_t *json =
        json_pack("{s:o, s:b, s:o}", "uri", control_text(buf_span(&uri)), "prefix", pin->is_prefix,
                  "ends_in_s",
                  until_s != 0 ? json_integer(until_s > now_s ? until_s - now_s : 0) : json_null());
    check(json != NULL);
    buf_done(&uri);
    return json;
}

// Wraps the list of pins in an answer, and takes ownership of it.
static json_t *pins_json(json_t *pins, struct store *store)
{
    struct store_pins_figures figures;
    store_pins_figures(store, &figures);
    json_t *json =
        json_pack("{s:o, s:b, s:b, s:I, s:I}", "pins", pins, "kept", figures.are_kept, "looking",
                  figures.in_review, "pinned_bytes", (json_int_t)figures.bytes, "pinned_max_bytes",
                  (json_int_t)figures.bytes_max);
    check(json != NULL);
    return json;
}

static void on_changed(void *ctx, enum err err, const char *why)
{
    struct pin_call *pin = ctx;
    if (err != ERR_OK) {
        admin_call_refuse(&pin->call, err == ERR_LIMIT ? 409 : 503, why);
        free(pin);
        return;
    }
    json_t *items = json_array();
    for (unsigned i = 0; i < pin->count; i++) {
        json_t *item = pin_json(&pin->items[i]);
        check(json_object_set_new(item, "changed", json_boolean(pin->items[i].is_changed)) == 0 &&
              json_array_append_new(items, item) == 0);
    }
    admin_call_answer(&pin->call, 200, pins_json(items, pin->store));
    free(pin);
}

// Reads the URIs of a call. Returns false if it has answered the call.
static bool items_take(struct pin_call *pin, struct admin_call **call, const json_t *uris,
                       uint64_t until_s)
{
    for (unsigned i = 0; i < pin->count; i++) {
        const json_t *item = json_array_get(uris, i);
        struct span text = {json_string_value(item), json_string_length(item)};
        struct s3_uri uri;
        if (!control_take_uri(call, text, &uri)) {
            return false;
        }
        pin->items[i] = (struct proxy_pin){
            .bucket = uri.bucket, .key = uri.key, .is_prefix = uri.is_prefix, .until_s = until_s};
    }
    return true;
}

static void change(struct control *control, struct admin_call *call, bool pins)
{
    const json_t *uris = admin_call_member(call, "uris");
    const json_t *ttl = admin_call_member(call, "ttl_s");
    size_t count = json_array_size(uris);
    json_int_t ttl_s = json_integer_value(ttl);
    if (count == 0 || count > PROXY_PINS_MAX) {
        admin_call_refuse(&call, 400, "uris is a list of 1 to 256");
        return;
    }
    if (ttl != NULL && (!json_is_integer(ttl) || ttl_s <= 0 || ttl_s > TTL_S_MAX)) {
        admin_call_refuse(&call, 400, "ttl_s is a number of seconds, 100 years at most");
        return;
    }
    struct pin_call *pin = calloc(1, sizeof(*pin) + count * sizeof(pin->items[0]));
    check(pin != NULL);
    pin->count = (unsigned)count;
    pin->store = control->store;
    if (!items_take(pin, &call, uris, ttl != NULL ? (uint64_t)(clock_wall_s() + ttl_s) : 0)) {
        free(pin);
        return;
    }
    pin->call = call; // `pin` owns the call from here on, because the items point into its body
    proxy_pin(control->proxy, pins, pin->items, pin->count, on_changed, pin);
}

void control_pin(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    change(control, call, true);
}

void control_unpin(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    change(control, call, false);
}

static void on_pin(void *ctx, const struct proxy_pin *pin)
{
    check(json_array_append_new(ctx, pin_json(pin)) == 0);
}

void control_pins(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    json_t *items = json_array();
    proxy_pins_list(control->proxy, on_pin, items);
    admin_call_answer(&call, 200, pins_json(items, control->store));
}
