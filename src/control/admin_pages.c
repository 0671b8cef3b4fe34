// SPDX-License-Identifier: Apache-2.0
// Answers of the admin thread itself: probes, metrics, version, settings, totals.
#include "control/admin_private.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/version.h"

#define HOST_NAME_BYTES 256
#define TEXT_MAX_BYTES (4u << 20)

static void reply_probe(struct evhttp_request *req, bool ok, struct buf *why)
{
    const char *reason = buf_cstr(why);
    reason = reason[0] != '\0' ? reason : ok ? "ok" : "unavailable";
    json_t *json = json_pack("{s:s, s:o}", "status", ok ? "ok" : "unavailable", "reason",
                             admin_json_text(span_from_cstr(reason)));
    check(json != NULL);
    admin_reply_json(req, ok ? HTTP_OK : HTTP_SERVUNAVAIL, json);
}

static void answer_probe(struct admin *admin, struct evhttp_request *req, admin_probe_fn probe)
{
    struct buf why;
    buf_init(&why, ADMIN_WHY_MAX_BYTES);
    reply_probe(req, probe == NULL || probe(admin->options.ctx, &why), &why);
    buf_done(&why);
}

void admin_page_livez(struct admin *admin, struct evhttp_request *req)
{
    answer_probe(admin, req, admin->options.alive);
}

void admin_page_readyz(struct admin *admin, struct evhttp_request *req)
{
    struct buf why;
    buf_init(&why, ADMIN_WHY_MAX_BYTES);
    reply_probe(req, admin_ready(admin, admin_access_sees_detail(admin, req), &why), &why);
    buf_done(&why);
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
    if (admin->options.conditions != NULL) {
        conditions_metrics(admin->options.conditions, &out);
    }
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
    char name[HOST_NAME_BYTES] = "";
    struct buf origins;
    buf_init(&origins, ADMIN_WHY_MAX_BYTES);
    if (admin->options.origins != NULL) {
        admin->options.origins(admin->options.ctx, &origins);
    }
    (void)gethostname(name, sizeof(name) - 1); // empty if it fails
    // In a pod the host's name is the pod's, unless the pod uses the network of its node.
    const char *node = getenv("NODE_NAME"), *pod = getenv("POD_NAME");
    bool is_in_pod = getenv("KUBERNETES_SERVICE_HOST") != NULL;
    const char *host = node != NULL ? node : name;
    pod = pod == NULL && is_in_pod ? name : pod;
    struct rlimit files = {0}; // 0 if it is unknown
    (void)getrlimit(RLIMIT_NOFILE, &files);
    // The names of hosts and pods may contain any bytes.
    json_t *json = json_pack(
        "{s:s, s:s, s:s, s:i, s:I, s:o, s:o?, s:s, s:o, s:s, s:o}", "version", version_text(),
        "revision", version_revision(), "build", version_build(), "pid", (int)getpid(),
        "open_files_max", (json_int_t)files.rlim_cur, "host", admin_json_text(span_from_cstr(host)),
        "pod", pod != NULL ? admin_json_text(span_from_cstr(pod)) : NULL, "io_engine",
        admin->options.io_engine, "origin", admin_json_text(buf_span(&origins)), "auth",
        admin->options.auth, "listen", listen);
    check(json != NULL);
    buf_done(&origins);
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

void admin_page_conditions(struct admin *admin, struct evhttp_request *req)
{
    json_t *conditions = admin_conditions(admin, admin_access_sees_detail(admin, req));
    admin_reply_json(req, HTTP_OK, json_pack("{s:o}", "conditions", conditions));
}

void admin_page_summary(struct admin *admin, struct evhttp_request *req)
{
    admin_reply_json(req, HTTP_OK, admin_summary(admin, admin_access_sees_detail(admin, req)));
}
