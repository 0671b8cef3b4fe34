// SPDX-License-Identifier: Apache-2.0
// Dispatches a request: checks its path, method, rights and parameters, and starts its answer. Runs
// on the admin thread.
#include "control/admin_private.h"

#include <event2/buffer.h>
#include <event2/keyvalq_struct.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHY_MAX 512u
#define STATUS_LOOP 508u

static const struct route {
    const char *method, *path;
    enum admin_class class;
    const char *parameters;
    void (*answer)(struct admin *admin, struct evhttp_request *req); // NULL: an action answers
    enum admin_action action;
} routes[] = {
#define PAGE(method, path, class, parameters, name)                                                \
    {#method, path, ADMIN_CLASS_##class, parameters, admin_page_##name, ADMIN_ACTION_COUNT_},
#define ACTION(method, path, class, parameters, name)                                              \
    {#method, path, ADMIN_CLASS_##class, parameters, NULL, ADMIN_ACTION_##name},
#include "control/routes.def"
#undef PAGE
#undef ACTION
};

static const char *method_of(struct evhttp_request *req)
{
    switch (evhttp_request_get_command(req)) {
    case EVHTTP_REQ_GET:
    case EVHTTP_REQ_HEAD:
        return "GET";
    case EVHTTP_REQ_POST:
        return "POST";
    case EVHTTP_REQ_DELETE:
        return "DELETE";
    default:
        return "other";
    }
}

// Returns true if the route answers the path. If the route's path ends in '/', *ret_id is the last
// segment of `path`; otherwise it is NULL.
static bool path_is(const struct route *route, const char *path, const char **ret_id)
{
    size_t len = strlen(route->path);
    *ret_id = NULL;
    if (len > 1 && route->path[len - 1] == '/') {
        *ret_id = path + len;
        return strncmp(path, route->path, len) == 0 && path[len] != '\0' &&
               strchr(path + len, '/') == NULL;
    }
    return strcmp(path, route->path) == 0;
}

static bool is_there(const struct admin *admin, const struct route *route)
{
    if (route->answer == NULL) {
        return admin->options.actions[route->action] != NULL;
    }
    return (route->answer != admin_page_config || admin->options.config != NULL) &&
           (route->answer != admin_page_log || admin->options.lines.turn != NULL);
}

// Refuses a method that no route of the path has, and lists the allowed methods.
static void refuse_method(const struct admin *admin, struct evhttp_request *req, const char *path)
{
    char allow[64] = "", why[WHY_MAX];
    const char *id;
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        if (is_there(admin, &routes[i]) && path_is(&routes[i], path, &id)) {
            size_t len = strlen(allow);
            const char *method =
                strcmp(routes[i].method, "GET") == 0 ? "GET, HEAD" : routes[i].method;
            (void)snprintf(allow + len, sizeof(allow) - len, "%s%s", len > 0 ? ", " : "", method);
        }
    }
    check(evhttp_add_header(evhttp_request_get_output_headers(req), "Allow", allow) == 0);
    (void)snprintf(why, sizeof(why), "only %s is answered here", allow);
    admin_reply_refusal(req, HTTP_BADMETHOD, why);
}

// --- parameters ----------------------------------------------------------------------------------

static bool is_known(const struct route *route, const char *name)
{
    struct span rest = span_from_cstr(route->parameters), word;
    while (span_split(&rest, ' ', &word)) {
        if (span_equal_cstr(word, name)) {
            return true;
        }
    }
    return false;
}

static bool judge_name(const struct route *route, const char *name, char why[WHY_MAX])
{
    if (is_known(route, name)) {
        return true;
    }
    (void)snprintf(why, WHY_MAX, "unknown parameter \"%.64s\" (%s%s)", name,
                   route->parameters[0] != '\0' ? "known: " : "there are none", route->parameters);
    return false;
}

static bool read_query(const struct route *route, struct evhttp_request *req,
                       struct evkeyvalq *ret_parameters, char why[WHY_MAX])
{
    if (!admin_reply_query(req, ret_parameters)) {
        (void)snprintf(why, WHY_MAX, "the query is not NAME=VALUE&...");
        return false;
    }
    for (const struct evkeyval *p = ret_parameters->tqh_first; p != NULL; p = p->next.tqe_next) {
        if (!judge_name(route, p->key, why)) {
            return false;
        }
        for (const struct evkeyval *q = p->next.tqe_next; q != NULL; q = q->next.tqe_next) {
            if (strcmp(p->key, q->key) == 0) {
                (void)snprintf(why, WHY_MAX, "parameter \"%.64s\" stands twice", p->key);
                return false;
            }
        }
    }
    return true;
}

static bool read_body(const struct route *route, struct evhttp_request *req, json_t **ret_body,
                      char why[WHY_MAX])
{
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t len = evbuffer_get_length(in);
    json_error_t error;
    const char *name;
    json_t *value;
    if (len == 0) {
        *ret_body = json_object();
        check(*ret_body != NULL);
        return true;
    }
    const char *text = (const char *)evbuffer_pullup(in, -1);
    json_t *body = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(body)) {
        (void)snprintf(why, WHY_MAX, "the body is no JSON object%s%s", body == NULL ? ": " : "",
                       body == NULL ? error.text : "");
        json_decref(body);
        return false;
    }
    json_object_foreach(body, name, value)
    {
        if (!judge_name(route, name, why)) {
            json_decref(body);
            return false;
        }
    }
    *ret_body = body;
    return true;
}

static void start_action(struct admin *admin, struct evhttp_request *req, const struct route *route,
                         const char *id)
{
    char why[WHY_MAX] = "";
    struct evkeyvalq parameters;
    json_t *body = NULL;
    bool is_post = strcmp(route->method, "POST") == 0;
    bool ok =
        read_query(route, req, &parameters, why) && (!is_post || read_body(route, req, &body, why));
    if (ok && is_post && parameters.tqh_first != NULL) {
        (void)snprintf(why, sizeof(why), "parameters belong into the body, a JSON object");
        ok = false;
    }
    if (!ok) {
        evhttp_clear_headers(&parameters);
        json_decref(body);
        admin_reply_refusal(req, HTTP_BADREQUEST, why);
        return;
    }
    if (id != NULL &&
        evhttp_add_header(&parameters, "id", id) != 0) { // this fails if `id` has a line end
        evhttp_clear_headers(&parameters);
        json_decref(body);
        admin_reply_refusal(req, HTTP_NOTFOUND, "no such page");
        return;
    }
    bool is_order = route->class == ADMIN_CLASS_CONTROL;
    if (!admin_call_start(admin, req, route->action, is_order, &parameters, body)) {
        admin_reply_refusal(req, ADMIN_STATUS_BUSY, "too many calls wait for their answer");
    }
}

static void answer(struct admin *admin, struct evhttp_request *req, const struct route *route,
                   const char *id)
{
    const char *why = NULL;
    unsigned status = admin_access_judge(admin, req, route->class, &why);
    if (status != 0) {
        if (status == 401) {
            check(evhttp_add_header(evhttp_request_get_output_headers(req), "WWW-Authenticate",
                                    "Bearer") == 0);
        }
        admin_reply_refusal(req, status, why);
        return;
    }
    if (route->answer == NULL) {
        start_action(admin, req, route, id);
        return;
    }
    struct evkeyvalq parameters;
    char text[WHY_MAX] = "";
    if (strcmp(route->parameters, "*") == 0) {
        route->answer(admin, req);
        return;
    }
    if (read_query(route, req, &parameters, text)) {
        route->answer(admin, req);
    } else {
        admin_reply_refusal(req, HTTP_BADREQUEST, text);
    }
    evhttp_clear_headers(&parameters);
}

void admin_routes_dispatch(struct admin *admin, struct evhttp_request *req)
{
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    const char *method = method_of(req), *id = NULL;
    const char *via = evhttp_find_header(evhttp_request_get_input_headers(req), "Via");
    bool has_path = false;
    if (via != NULL && strstr(via, "forebay-") != NULL) { // as origin/hops.c writes it
        admin_reply_refusal(
            req, STATUS_LOOP,
            "this is Forebay's admin port, but another Forebay uses it as its origin");
        return;
    }
    for (size_t i = 0; path != NULL && i < ARRAY_LEN(routes); i++) {
        if (!is_there(admin, &routes[i]) || !path_is(&routes[i], path, &id)) {
            continue;
        }
        if (strcmp(routes[i].method, method) == 0) {
            answer(admin, req, &routes[i], id);
            return;
        }
        has_path = true;
    }
    if (has_path) {
        refuse_method(admin, req, path);
    } else {
        admin_reply_refusal(req, HTTP_NOTFOUND, "no such page");
    }
}
