// SPDX-License-Identifier: Apache-2.0
// Creates and frees a pass_state. Copies parts of the request into it, because it may outlive the
// request. On the request's worker.
#include "proxy/pass/pass_private.h"

#include <stdlib.h>
#include <string.h>

bool pass_state_copy_span(struct arena *arena, struct span *s)
{
    if (s->len > 0) {
        *s = arena_copy(arena, *s);
    }
    return s->len == 0 || s->ptr != NULL;
}

bool pass_state_copy_request(struct arena *arena, const struct s3_request *from,
                             struct s3_request *ret_to)
{
    // Copies everything except the unused entries of the large array `params`.
    size_t params = offsetof(struct s3_request, params);
    size_t behind = offsetof(struct s3_request, param_count);
    memcpy(ret_to, from, params + from->param_count * sizeof(from->params[0]));
    memcpy((char *)ret_to + behind, (const char *)from + behind, sizeof(*from) - behind);
    bool ok = pass_state_copy_span(arena, &ret_to->method) &&
              pass_state_copy_span(arena, &ret_to->bucket) &&
              pass_state_copy_span(arena, &ret_to->key) &&
              pass_state_copy_span(arena, &ret_to->raw_path) &&
              pass_state_copy_span(arena, &ret_to->raw_query) &&
              pass_state_copy_span(arena, &ret_to->version_id);
    for (unsigned i = 0; ok && i < ret_to->param_count; i++) {
        struct s3_param *param = &ret_to->params[i];
        ok = pass_state_copy_span(arena, &param->name) &&
             pass_state_copy_span(arena, &param->value) &&
             pass_state_copy_span(arena, &param->raw_name) &&
             pass_state_copy_span(arena, &param->raw_value);
    }
    return ok;
}

bool pass_state_copy_headers(struct arena *arena, const struct headers *from, struct headers *to)
{
    if (!headers_reserve(to, arena, from->count)) {
        return false;
    }
    for (unsigned i = 0; i < from->count; i++) {
        struct header copy = from->items[i];
        if (!pass_state_copy_span(arena, &copy.name) || !pass_state_copy_span(arena, &copy.value) ||
            !headers_add(to, arena, copy.name, copy.value)) {
            return false;
        }
    }
    return true;
}

// --- birth and end -------------------------------------------------------------------------------

struct pass_state *pass_state_new(struct request *r, const struct pass_row *rows)
{
    check(r->pass == NULL);
    check(rows != NULL);
    struct pass_state *p = calloc(1, sizeof(*p));
    check(p != NULL);
    p->magic = PASS_MAGIC;
    p->rows = rows;
    p->pw = r->pw;
    p->request = r;
    p->arena = arena_new_counted(PASS_ARENA_MAX, BUDGET_CLIENTS);
    p->table = r->principal.table != NULL ? access_keys_ref(r->principal.table) : NULL;
    buf_init(&p->form, PASS_FORM_HEAD_MAX);
    byte_queue_init(&p->down);
    pass_writes_init(p);
    pass_origin_init(p);
    return p;
}

void pass_state_free(void *ptr)
{
    struct pass_state *p = as_pass(ptr);
    check(p->phase == PASS_OVER || p->phase == PASS_READ); // READ if it was refused at once
    check(!pass_calls(p));
    check(!p->is_noting);
    check(p->telling == NULL);
    check(p->awaited == 0);
    pass_writes_done(p);
    pass_origin_done(p);
    pass_preflight_end(p);
    pass_body_done(&p->body);
    if (p->upload == UPLOAD_FORM_HEAD) {
        pass_enter_upload(p, UPLOAD_DROPPED);
    }
    buf_done(&p->location.document);
    pass_listing_done(p);
    byte_queue_done(&p->down);
    list_cache_page_unref(p->list_page);
    access_keys_unref(p->table);
    arena_free(p->arena);
    p->magic = 0;
    free(p);
}
