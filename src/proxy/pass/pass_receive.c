// SPDX-License-Identifier: Apache-2.0
// Receives the client's body from the exchange, and feeds it to the pass_body that checks it. The
// beginning of a form is kept until its key is known, and a batch delete until it is complete. Only
// then can their keys be invalidated, and only after that is the origin asked. On the request's
// worker; pass_upload.c sends the body to the origin.
#include "proxy/pass/pass_private.h"

static const struct span FORM_REFUSED = SPAN(
    "Forebay refuses this form: names must be quoted, the key must occur once and before the file, "
    "only a button may follow the file, and the boundary may occur only on delimiter lines");

// Returns true while the body is a form whose key is not known yet.
static bool is_before_key(const struct pass_state *p)
{
    return p->upload == UPLOAD_FORM || p->upload == UPLOAD_FORM_HEAD;
}

static void pause_if_full(struct pass_state *p)
{
    check(p->request != NULL);
    if (pass_body_full(&p->body) && p->upload == UPLOAD_FLOWS) {
        pass_enter_upload(p, UPLOAD_PAUSED);
        http_body_pause(p->request->x);
    }
}

static enum err feed(struct pass_state *p, struct span data)
{
    check(p->upload == UPLOAD_FLOWS || p->upload == UPLOAD_PAUSED);
    enum err err = pass_body_feed(&p->body, data);
    if (err == ERR_OK) {
        pause_if_full(p);
        pass_upload_wake(p);
    }
    return err;
}

// Scans bytes of a form from its file on. Called before they are forwarded.
static enum err feed_file(struct pass_state *p, struct span data)
{
    check(p->form_tail != NULL);
    enum err err = pass_form_tail_feed(p->form_tail, data);
    if (err != ERR_OK) {
        p->err_message = FORM_REFUSED;
    }
    return err;
}

// Handles the key of a form. A form with a signed policy names an access key that the origin knows.
// In open mode it is forwarded unchanged, and the origin judges it. In verify mode it is refused,
// because the access key is Forebay's own, unknown to the origin, and Forebay cannot sign a form
// again.
static enum err form_key_found(struct pass_state *p, const struct pass_form *form)
{
    check(p->upload == UPLOAD_FORM_HEAD);
    check(p->form_tail == NULL);
    check(p->phase == PASS_READ);
    p->form_tail = arena_alloc(p->arena, sizeof(*p->form_tail));
    if (p->form_tail == NULL) {
        return ERR_NO_MEMORY;
    }
    pass_form_tail_init(p->form_tail, form->boundary);
    p->body.must_verify = true; // the last byte waits until the closing delimiter has come
    if (p->form_is_signed && p->request->principal.verified) {
        p->err_message = SPAN("A form with a signed policy cannot be signed again for the origin: "
                              "use PutObject or a presigned PUT, or post the form to the origin");
        return ERR_INVALID_ARGUMENT;
    }
    enum err err = pass_keys_of_form(p, form->key);
    if (err == ERR_OK) {
        struct span whole = buf_span(&p->form);
        err = feed_file(p, (struct span){whole.ptr + form->file_at, whole.len - form->file_at});
    }
    if (err == ERR_OK) {
        err = pass_body_feed(&p->body, buf_span(&p->form));
    }
    if (err != ERR_OK) {
        return err;
    }
    pass_enter_upload(p, UPLOAD_FLOWS); // this also frees `form`
    p->sink.is_collected = p->body.collect;
    pause_if_full(p);
    if (!p->body.collect) {
        pass_phase_start(p);
    }
    return ERR_OK;
}

// Collects the beginning of a form until its key is known. No byte may reach the origin before that
// key is invalidated.
static enum err feed_form(struct pass_state *p, struct span data, bool is_end)
{
    struct request *r = p->request;
    check(is_before_key(p));
    check(p->form.len <= PASS_FORM_HEAD_MAX);
    check(p->form_tried <= p->form.len);
    if (p->upload == UPLOAD_FORM) {
        if (!chunk_budget_try_charge(BUDGET_BODIES, 0, PASS_FORM_HEAD_MAX)) {
            return ERR_OVERLOAD;
        }
        pass_enter_upload(p, UPLOAD_FORM_HEAD);
    }
    size_t n = min_u64(data.len, PASS_FORM_HEAD_MAX - p->form.len);
    buf_append(&p->form, data.ptr, n);
    bool is_full = p->form.len == PASS_FORM_HEAD_MAX;
    if (!is_end && !is_full && p->form.len < 2 * p->form_tried) {
        // Parses again only when the size has doubled, so that the total cost is linear.
        return ERR_OK;
    }
    p->form_tried = p->form.len;
    struct pass_form form;
    switch (pass_form_read(p->arena, &r->http->headers, r->s3.bucket, buf_span(&p->form), &form)) {
    case PASS_FORM_KEY: {
        p->form_is_signed = form.is_signed;
        struct span rest = {data.ptr + n, data.len - n};
        enum err err = form_key_found(p, &form);
        if (err == ERR_OK && rest.len > 0) {
            err = feed_file(p, rest);
        }
        return err == ERR_OK && rest.len > 0 ? feed(p, rest) : err;
    }
    case PASS_FORM_MORE:
        if (!is_end && !is_full) {
            return ERR_OK;
        }
        break;
    case PASS_FORM_REFUSED:
        break;
    }
    p->err_message = FORM_REFUSED;
    return ERR_INVALID_ARGUMENT;
}

static enum err on_data(struct http_sink *sink, struct span data)
{
    struct pass_state *p = as_pass(container_of(sink, struct pass_state, sink));
    check(p->request != NULL);
    check(p->upload != UPLOAD_NONE);
    if (p->upload == UPLOAD_DROPPED) {
        return ERR_CANCELLED;
    }
    enum err err = ERR_OK;
    if (is_before_key(p)) {
        err = feed_form(p, data, false);
    } else {
        err = p->form_tail != NULL ? feed_file(p, data) : ERR_OK;
        err = err == ERR_OK ? feed(p, data) : err;
    }
    if (err != ERR_OK) {
        pass_upload_refuse(p, err, p->err_message);
    }
    return err;
}

static void on_data_end(struct http_sink *sink, enum err err)
{
    struct pass_state *p = as_pass(container_of(sink, struct pass_state, sink));
    check(p->request != NULL);
    check(p->upload != UPLOAD_NONE);
    if (p->upload == UPLOAD_DROPPED) {
        return;
    }
    if (err == ERR_OK && is_before_key(p)) {
        err = feed_form(p, (struct span){NULL, 0}, true);
    }
    if (err == ERR_OK && p->form_tail != NULL && !pass_form_tail_is_closed(p->form_tail)) {
        p->err_message = FORM_REFUSED;
        err = ERR_INVALID_ARGUMENT;
    }
    if (err == ERR_OK) {
        err = pass_body_finish(&p->body, p->arena);
    }
    if (err == ERR_OK && p->kind == PASS_KIND_STS) {
        err = pass_sts_authorize(p);
    }
    if (err == ERR_OK && p->body.collect) {
        err = pass_keys_of_body(p);
        if (err == ERR_OK) {
            pass_phase_start(p);
        }
    }
    if (err != ERR_OK) {
        pass_upload_refuse(p, err, p->err_message);
        return;
    }
    pass_upload_wake(p);
}

void pass_receive_start(struct pass_state *p)
{
    check(p->request != NULL);
    check(p->sink.on_data == NULL);
    check(p->body.collect || p->body.kind != ORIGIN_BODY_NONE);
    p->sink.on_data = on_data;
    p->sink.on_end = on_data_end;
    bool is_form = p->s3.operation == S3_PostObject;
    pass_enter_upload(p, is_form ? UPLOAD_FORM : UPLOAD_FLOWS);
    p->sink.is_collected = p->body.collect || is_form;
    http_body_start(p->request->x, &p->sink);
}
