// SPDX-License-Identifier: Apache-2.0
// Relays preflights. By a preflight (OPTIONS, without a signature) a browser asks whether a page
// may send a request. The origin answers by the bucket's CORS rules. Forebay asks unsigned, and
// sends only the three headers of the question and Via. It leaves out the query, which may contain
// a link's signature. If the answer is yes, the client gets the rules. Any other answer becomes the
// same refusal. Nothing is kept. No right is needed, because no data of the bucket are read. On the
// request's worker, in the sequence of serve_pass.c.
#include "proxy/pass/pass_private.h"

#include "stats/stats.h"

// Maximum preflights in flight on one worker. There is a limit because each needs no signature and
// costs the origin a request.
#define PREFLIGHTS_MAX 16u

enum err pass_preflight_plan(struct pass_state *p)
{
    check(p->kind == PASS_KIND_S3);
    check(p->pw->preflights <= PREFLIGHTS_MAX);
    check(!pass_changes_any(p));
    if (p->pw->preflights == PREFLIGHTS_MAX) {
        stats_add(COUNTER_preflights_refused, 1);
        p->request->refused_why = stats_label(COUNTER_preflights_refused);
        return ERR_OVERLOAD;
    }
    p->pw->preflights++;
    p->kind = PASS_KIND_PREFLIGHT;
    unsigned kept = 0;
    for (unsigned i = 0; i < p->headers.count; i++) {
        struct span name = p->headers.items[i].name;
        if (span_equal_nocase(name, SPAN("Origin")) || span_equal_nocase(name, SPAN("Via")) ||
            span_equal_nocase(name, SPAN("Access-Control-Request-Method")) ||
            span_equal_nocase(name, SPAN("Access-Control-Request-Headers"))) {
            p->headers.items[kept++] = p->headers.items[i];
        }
    }
    p->headers.count = kept;
    p->s3.param_count = 0;
    p->s3.raw_query = (struct span){NULL, 0};
    return ERR_OK;
}

void pass_preflight_end(struct pass_state *p)
{
    if (p->kind == PASS_KIND_PREFLIGHT) {
        check(p->pw->preflights > 0);
        p->pw->preflights--;
    }
}

bool pass_preflight_is_yes(const struct pass_state *p)
{
    check(p->kind == PASS_KIND_PREFLIGHT);
    return (p->relay.status == 200 || p->relay.status == 204) && p->relay.has_length &&
           p->relay.length == 0;
}

bool pass_preflight_keeps(struct span name)
{
    struct span rules = SPAN("Access-Control-");
    return span_equal_nocase(name, SPAN("Vary")) ||
           (name.len > rules.len && span_starts_with_nocase(name, rules));
}
