// SPDX-License-Identifier: Apache-2.0
// Birth and end of a pass_state, and what it copies: it outlives the request. On the request's worker.
#include "proxy/pass_private.h"

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
    p->arena = arena_new(PASS_ARENA_MAX);
    p->place_count = places_count(r->pw->proxy);
    p->table = r->principal.table != NULL ? access_keys_ref(r->principal.table) : NULL;
    buf_init(&p->form, PASS_FORM_HEAD_MAX);
    byte_queue_init(&p->down);
    pass_origin_init(p);
    return p;
}

void pass_state_free(void *ptr)
{
    struct pass_state *p = as_pass(ptr);
    for (unsigned i = 0; i < p->write_count; i++) {
        object_key_unref(p->writes[i].key);
    }
    for (unsigned i = 0; i < p->late_count; i++) {
        object_key_unref(p->late_writes[i].key);
    }
    free(p->writes);
    free(p->late_writes);
    pass_origin_done(p);
    pass_preflight_end(p);
    pass_body_done(&p->body);
    buf_done(&p->form);
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
    unsigned total = pass_writes_total(p);
    bool is_open = false, is_over = false; // all of the writes
    switch (p->write_phase) {
    case WRITES_NONE:
        check(p->writes_ready == 0);
        check(p->relay_phase == RELAY_NONE || total == 0);
        is_over = true;
        break;
    case WRITES_STARTING:
        check(p->writes_ready < total);
        check(p->relay_phase == RELAY_NONE);
        break;
    case WRITES_READY:
        is_open = true;
        check(p->writes_ended == 0);
        break;
    case WRITES_CLOSING:
        is_open = true;
        check(p->writes_ended < total + p->late_count);
        break;
    case WRITES_ENDED:
        is_open = is_over = true;
        check(p->writes_ended == total + p->late_count);
        break;
    }
    check(!is_open || p->writes_ready == total);
    check(p->writes_ended <= p->writes_ready + p->late_count);
    check(!p->end_released || is_over);
    check(!p->is_refused || p->is_answered);
    check(!p->head_came || p->relay_phase != RELAY_NONE);
    check(p->telling == NULL || (p->request != NULL && !p->is_answered));
    check(!p->is_dead);
    check(!p->park.is_parked || (p->relay_phase == RELAY_RUNNING && !p->park.is_ending));
    check(!p->park.is_ending || p->park.may);
}
