// SPDX-License-Identifier: Apache-2.0
// A read that bypasses the cache tells its client a version, or that there is no such object. After
// that, a later request must not get an older version from the cache. So the request tells the
// key's home first (rule 31 of fill/README.md), and the answer's head waits for the home's reply.
// The body is queued until then.
//
// Some answers (412, 416) only say that the object is not the version that the client named, or is
// shorter. Then the home asks the origin for the current version. Otherwise a client that starts
// over would get the same version from the cache again. On the request's worker.
#include "proxy/pass/pass_private.h"

static bool is_read_of_object(const struct s3_request *s3)
{
    return s3->operation == S3_GetObject || s3->operation == S3_HeadObject;
}

// Returns true if the answer may describe the current object, because no parameter can select
// another version.
static bool may_name_version(const struct s3_request *s3)
{
    for (unsigned i = 0; i < s3->param_count; i++) {
        if (span_equal_nocase(s3->params[i].name, SPAN("versionId"))) {
            return false;
        }
    }
    return is_read_of_object(s3) ||
           (s3->operation == S3_Unknown && (s3->flags & S3_OP_READ) != 0 && s3->key.len > 0);
}

// Finds the ETag in the answer. An empty one means that there is no such object. Returns false if
// the answer tells neither. A weak ETag counts like a strong one, because a proxy that compresses
// an answer in transit does not change its version.
static bool find_etag(const struct pass_state *p, struct span *ret_etag)
{
    check(p->request != NULL);
    *ret_etag = (struct span){NULL, 0};
    unsigned status = p->relay.status;
    if (status == 404) {
        return is_read_of_object(&p->request->s3);
    }
    *ret_etag = p->direct.etag;
    bool has_etag =
        p->call.kind != PASS_BY_RELAY || (headers_count(&p->answered, SPAN("ETag")) == 1 &&
                                          headers_get(&p->answered, SPAN("ETag"), ret_etag));
    if (span_starts_with(*ret_etag, SPAN("W/"))) {
        *ret_etag = (struct span){ret_etag->ptr + 2, ret_etag->len - 2};
    }
    return (status == 200 || status == 206 || status == 304) && has_etag && ret_etag->len > 0;
}

static void on_told(void *ctx, struct subscription *sub)
{
    struct pass_state *p = as_pass(ctx);
    check(p->telling == sub && sub->state == SUBSCRIPTION_ENDED);
    pass_version_leave(p);
    if (p->err == ERR_OK && p->answer == ANSWER_HEAD) {
        pass_answer_start(p);
    }
    pass_go(p);
}

// Returns the version that the answer names. NULL: there is no such object, or its ETag is too long
// for the cache.
static struct store_object *version_named(const struct object_key *key, struct span etag)
{
    check(key != NULL);
    const struct span none = {NULL, 0};
    return etag.len == 0 ? NULL
                         : store_object_new(key->hash, key->realm, key->bucket, key->key, etag,
                                            none, none, 0, key->limits.block_size_bytes, 0);
}

bool pass_version_tell(struct pass_state *p)
{
    check(p->phase == PASS_ASK);
    check(p->request != NULL);
    check(!pass_changes_any(p) || p->is_streamed);
    struct span etag;
    unsigned status = p->relay.status;
    // Both statuses may mean that a cached version is outdated, but they name no version.
    bool denies = status == 412 || status == 416;
    check(p->telling == NULL && !pass_is_answered(p));
    if (!may_name_version(&p->request->s3) || !(denies || find_etag(p, &etag))) {
        return false;
    }
    struct object_key *key = request_object_key(p->request);
    struct fill_ask ask = {.key = key, .client = request_client(p->request)};
    if (denies) {
        // The request has looked nothing up, so the home has no record to compare with the answer.
        ask.kind = FILL_ASK_CURRENT;
        ask.strict = true;
        ask.index = FILL_INDEX_UNREADABLE;
    } else {
        ask.kind = FILL_ASK_TELL;
        ask.asked_us = p->call.asked_us;
        ask.object = version_named(key, etag);
    }
    p->telling = subscription_ask(p->pw->fill, &ask, on_told, p);
    store_object_unref(ask.object);
    object_key_unref(key);
    return true;
}

void pass_version_leave(struct pass_state *p)
{
    if (p->telling != NULL) {
        subscription_leave(p->telling);
        p->telling = NULL;
    }
}
