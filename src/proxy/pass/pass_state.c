// SPDX-License-Identifier: Apache-2.0
// Birth and end of a pass_state, and what it copies: it outlives the request. On the request's
// worker.
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
    // All but the large array, of which only the first param_count count.
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

struct pass_state *pass_state_new(struct request *r)
{
    struct pass_state *p = calloc(1, sizeof(*p));
    check(p != NULL);
    p->magic = PASS_MAGIC;
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

void pass_state_drop_form(struct pass_state *p)
{
    buf_done(&p->form);
    if (p->form_is_counted) {
        p->form_is_counted = false;
        chunk_budget_discharge(BUDGET_BODIES, PASS_FORM_HEAD_MAX);
    }
}

void pass_state_free(void *ptr)
{
    struct pass_state *p = as_pass(ptr);
    pass_writes_done(p);
    pass_origin_done(p);
    pass_preflight_end(p);
    pass_body_done(&p->body);
    pass_state_drop_form(p);
    buf_done(&p->location.document);
    byte_queue_done(&p->down);
    list_cache_page_unref(p->list_page);
    access_keys_unref(p->table);
    arena_free(p->arena);
    p->magic = 0;
    free(p);
}

void pass_state_check(const struct pass_state *p)
{
    bool is_over = p->write_phase == WRITES_NONE || p->write_phase == WRITES_ENDED;
    bool is_waiting = p->write_phase == WRITES_STARTING || p->write_phase == WRITES_CLOSING;
    check(p->writes_pending <= pass_writes_total(p));
    check(is_waiting || p->writes_pending == 0);
    check(p->write_phase != WRITES_NONE || p->relay_phase == RELAY_NONE || !pass_changes_any(p));
    check(p->write_phase != WRITES_STARTING || p->relay_phase == RELAY_NONE);
    check(!p->end_released || is_over);
    check(!p->is_refused || p->is_answered);
    check(!p->head_came || p->relay_phase != RELAY_NONE);
    check(p->telling == NULL || (p->request != NULL && !p->is_answered));
    check(!p->is_dead);
    check(!p->park.is_parked || (p->relay_phase == RELAY_RUNNING && !p->park.is_ending));
    check(!p->park.is_ending || p->park.may);
}
