// SPDX-License-Identifier: Apache-2.0
// Answers of the admin thread itself: probes, metrics, version, settings, totals.
#include "control/admin_private.h"

#include <unistd.h>

#include "base/version.h"

#define TEXT_MAX_BYTES (4u << 20)

static void answer_probe(struct admin *admin, struct evhttp_request *req, admin_probe_fn probe)
{
    struct buf why;
    buf_init(&why, ADMIN_WHY_MAX_BYTES);
    bool ok = probe == NULL || probe(admin->options.ctx, &why);
    const char *reason = buf_cstr(&why);
    reason = reason[0] != '\0' ? reason : ok ? "ok" : "unavailable";
    json_t *json = json_pack("{s:s, s:o}", "status", ok ? "ok" : "unavailable", "reason",
                             admin_json_text(span_from_cstr(reason)));
    check(json != NULL);
    buf_done(&why);
    admin_reply_json(req, ok ? HTTP_OK : HTTP_SERVUNAVAIL, json);
}

void admin_page_livez(struct admin *admin, struct evhttp_request *req)
{
    answer_probe(admin, req, admin->options.alive);
}

void admin_page_readyz(struct admin *admin, struct evhttp_request *req)
{
    answer_probe(admin, req, admin->options.ready);
}

void admin_page_startupz(struct admin *admin, struct evhttp_request *req)
{
    answer_probe(admin, req, admin->options.started);
}

void admin_page_metrics(struct admin *admin, struct evhttp_request *req)
{
    struct buf out;
    buf_init(&out, TEXT_MAX_BYTES);
    admin_render_metrics(&out, admin->options.io_engine);
    if (admin->options.metrics != NULL) {
        admin->options.metrics(admin->options.ctx, &out);
    }
    if (buf_ok(&out)) {
        admin_reply_text(req, HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", buf_span(&out));
    } else {
        admin_reply_refusal(req, HTTP_INTERNAL, "the metrics do not fit their buffer");
    }
    buf_done(&out);
}

void admin_page_version(struct admin *admin, struct evhttp_request *req)
{
    json_t *listen = json_array();
    for (unsigned i = 0; i < admin->options.listen_count; i++) {
        // The path of a unix socket may not be UTF-8.
        struct span address = span_from_cstr(admin->options.listen[i]);
        check(json_array_append_new(listen, admin_json_text(address)) == 0);
    }
    json_t *json =
        json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:o}", "version", version_text(), "revision",
                  version_revision(), "build", version_build(), "pid", (int)getpid(), "io_engine",
                  admin->options.io_engine, "auth", admin->options.auth, "listen", listen);
    check(json != NULL);
    admin_reply_json(req, HTTP_OK, json);
}

void admin_page_config(struct admin *admin, struct evhttp_request *req)
{
    struct buf out;
    buf_init(&out, TEXT_MAX_BYTES);
    admin->options.config(admin->options.ctx, &out);
    if (buf_ok(&out)) {
        admin_reply_text(req, HTTP_OK, "application/json; charset=utf-8", buf_span(&out));
    } else {
        admin_reply_refusal(req, HTTP_INTERNAL, "the settings do not fit their buffer");
    }
    buf_done(&out);
}

void admin_page_summary(struct admin *admin, struct evhttp_request *req)
{
    admin_reply_json(req, HTTP_OK, admin_summary(admin));
}
