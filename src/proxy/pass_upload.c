// SPDX-License-Identifier: Apache-2.0
// The client's body on its way to the origin: from the exchange's sink into the pass_body that checks
// it, from there into the relay. Whichever side is ahead waits. A form is kept until its key is
// known, a batch delete until it is whole; only then its keys can be invalidated.
#include "proxy/pass_private.h"

void pass_upload_drop(struct pass_state *p)
{
    p->body_dropped = true;
    if (p->request != NULL && p->body_paused) {
        p->body_paused = false;
        http_body_resume(p->request->x);
    }
}

void pass_upload_wake(struct pass_state *p)
{
    if (p->upload_waiting && (p->body_dropped || pass_body_ready(&p->body))) {
        p->upload_waiting = false;
        origin_relay_resume_upload(&p->relay);
    }
}

static enum err feed(struct pass_state *p, struct span data)
{
    enum err err = pass_body_feed(&p->body, data);
    if (err != ERR_OK) {
        return err;
    }
    if (pass_body_full(&p->body) && !p->body_paused) {
        p->body_paused = true;
        http_body_pause(p->request->x);
    }
    pass_upload_wake(p);
    return ERR_OK;
}

// A signed policy names a key that the origin knows: it judges the form, which we leave unsigned.
// Where clients sign with keys of ours there is no way to sign a form again.
static enum err form_key_found(struct pass_state *p, struct span key)
{
    p->find_form_key = false;
    if (p->form_is_signed && p->request->principal.verified) {
        p->err_message = SPAN("A form with a signed policy cannot be signed again for the origin: "
                              "use PutObject or a presigned PUT, or post the form to the origin");
        return ERR_INVALID_ARGUMENT;
    }
    enum err err = pass_keys_of_form(p, key);
    if (err == ERR_OK) {
        err = feed(p, buf_span(&p->form));
    }
    if (err == ERR_OK && !p->body.collect) {
        pass_begin(p);
    }
    return err;
}

// A form's beginning is kept until its key is known, so that the key is invalidated before the
// origin hears of it.
static enum err feed_form(struct pass_state *p, struct span data, bool is_end)
{
    struct request *r = p->request;
    size_t n = min_u64(data.len, PASS_FORM_HEAD_MAX - p->form.len);
    buf_append(&p->form, data.ptr, n);
    bool is_full = p->form.len == PASS_FORM_HEAD_MAX;
    if (!is_end && !is_full && p->form.len < 2 * p->form_tried) {
        return ERR_OK; // looked at often enough for what came since
    }
    p->form_tried = p->form.len;
    struct span type = {NULL, 0}, key = {NULL, 0};
    (void)headers_get(&r->http->headers, SPAN("content-type"), &type);
    switch (pass_form_find_key(p->arena, type, buf_span(&p->form), &key, &p->form_is_signed)) {
    case PASS_FORM_KEY: {
        enum err err = form_key_found(p, key);
        return err == ERR_OK && n < data.len ? feed(p, (struct span){data.ptr + n, data.len - n})
                                             : err;
    }
    case PASS_FORM_MORE:
        if (!is_end && !is_full) {
            return ERR_OK;
        }
        break;
    case PASS_FORM_MISSING:
        break;
    }
    p->err_message = SPAN("The form's key must stand before its file, in the first 64 KiB.");
    return ERR_INVALID_ARGUMENT;
}

static enum err on_data(struct http_sink *sink, struct span data)
{
    struct pass_state *p = as_pass(container_of(sink, struct pass_state, sink));
    if (p->body_dropped) {
        return ERR_CANCELLED;
    }
    enum err err = p->find_form_key ? feed_form(p, data, false) : feed(p, data);
    if (err != ERR_OK) {
        pass_refuse(p, err, p->err_message);
    }
    return err;
}

static void on_data_end(struct http_sink *sink, enum err err)
{
    struct pass_state *p = as_pass(container_of(sink, struct pass_state, sink));
    if (p->body_dropped) {
        return;
    }
    if (err == ERR_OK && p->find_form_key) {
        err = feed_form(p, (struct span){NULL, 0}, true);
    }
    if (err == ERR_OK) {
        err = pass_body_finish(&p->body, p->arena);
    }
    if (err == ERR_OK && p->is_sts) {
        err = pass_sts_check(p);
    }
    if (err == ERR_OK && p->body.collect) {
        err = pass_keys_of_body(p);
        if (err == ERR_OK) {
            pass_begin(p);
        }
    }
    if (err != ERR_OK) {
        pass_refuse(p, err, p->err_message);
        return;
    }
    pass_upload_wake(p);
}

enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len)
{
    *ret_len = 0;
    if (p->err != ERR_OK) {
        return p->err;
    }
    if (p->body_dropped) {
        return ERR_OK; // the origin has answered already and does not read on
    }
    bool is_end;
    *ret_len = pass_body_take(&p->body, buf, max, &is_end);
    if (*ret_len == 0 && !is_end) {
        p->upload_waiting = true;
        return ERR_AGAIN;
    }
    if (p->body_paused && p->request != NULL && pass_body_low(&p->body)) {
        p->body_paused = false;
        http_body_resume(p->request->x);
    }
    return ERR_OK;
}

void pass_upload_start(struct pass_state *p)
{
    p->sink.on_data = on_data;
    p->sink.on_end = on_data_end;
    http_body_start(p->request->x, &p->sink);
}
