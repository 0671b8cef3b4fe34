// SPDX-License-Identifier: Apache-2.0
// Forwards the sources of a copy or rename: as the gate has parsed them, with the bucket names of
// the origin, and only in headers. On the request's worker.
#include "proxy/pass/pass_private.h"

// Sends the header that the gate has parsed, in place of the client's header or query parameter.
static enum err send_source(struct pass_state *p, const char *name, const struct s3_source *source,
                            struct span origin_bucket)
{
    check(source->is_understood);
    struct buf out;
    buf_init(&out, 8192);
    s3_source_render(source, origin_bucket, &out);
    struct span value =
        buf_ok(&out) ? arena_copy(p->arena, buf_span(&out)) : (struct span){NULL, 0};
    buf_done(&out);
    headers_remove(&p->headers, span_from_cstr(name));
    return value.ptr != NULL && headers_add(&p->headers, p->arena, span_from_cstr(name), value)
               ? ERR_OK
               : ERR_NO_MEMORY;
}

// Moves the parameters that belong to a source from the query to headers, and removes the source
// itself from the query.
static enum err move_source_params(struct pass_state *p)
{
    struct s3_request *s3 = &p->s3;
    enum err err = ERR_OK;
    unsigned kept = 0;
    for (unsigned i = 0; i < s3->param_count; i++) {
        const struct s3_param *param = &s3->params[i];
        if (s3_name_is_of_source(param->name)) {
            if (!headers_name_is_token(param->name) || !headers_value_is_clean(param->value)) {
                err = ERR_INVALID_ARGUMENT;
            } else if (!headers_add(&p->headers, p->arena, param->name, param->value)) {
                err = ERR_NO_MEMORY;
            }
        } else if (!s3_name_is_source(param->name)) {
            s3->params[kept++] = *param;
        }
    }
    s3->param_count = kept;
    return err;
}

// Clients name the bucket of a source by their own name for it. The origin may have another name
// for it.
enum err pass_sources_send(struct pass_state *p, struct span *ret_message)
{
    check(p->phase == PASS_READ);
    check(p->request != NULL);
    struct request *r = p->request;
    struct proxy *proxy = p->pw->proxy;
    const struct s3_source *copy = &r->effects.copy, *rename = &r->effects.rename;
    enum err err = ERR_OK;
    if (copy->is_understood) {
        const struct proxy_bucket *found = live_bucket(r->live, copy->bucket);
        struct origin *origin = found != NULL ? found->origin : proxy->options.default_origin;
        if (origin != r->origin) {
            *ret_message = SPAN("The copy's source and destination are at different origins");
            return ERR_NOT_IMPLEMENTED;
        }
        err = send_source(p, "x-amz-copy-source", copy,
                          found != NULL ? span_from_cstr(found->origin_bucket) : copy->bucket);
    }
    if (err == ERR_OK && rename->is_understood) {
        err = send_source(p, "x-amz-rename-source", rename, r->origin_bucket);
    }
    return err == ERR_OK && (copy->is_understood || rename->is_understood) ? move_source_params(p)
                                                                           : err;
}
