// SPDX-License-Identifier: Apache-2.0
// Finds the keys that a request changes: those that its head may change (r->effects), the key of a
// form, or the keys in the body of a batch delete. If the request changes a bucket without naming
// keys, any key of the bucket may change. On the request's worker, before the client leaves.
// pass_writes.c finds the names under which copies of a key may be cached.
#include "proxy/pass/pass_private.h"

// Adds a key that the request changes. `bucket` is the origin's name for the bucket. Both must live
// as long as `p`.
static enum err add_write(struct pass_state *p, struct span bucket, struct span key)
{
    check(p->phase == PASS_READ);
    check(bucket.len > 0);
    struct s3_path path;
    if (key.len > S3_KEY_MAX) {
        return ERR_KEY_TOO_LONG;
    }
    for (unsigned reading = 0; reading < S3_PATH_READINGS; reading++) {
        if (s3_key_as_path(key, reading, &path) && path.leaves) {
            return ERR_INVALID_URI; // its target is in no bucket or another one; S3 refuses it, too
        }
    }
    return pass_writes_add(p, bucket, key);
}

static enum err add_copied(struct pass_state *p, struct span bucket, struct span key)
{
    bool ok = pass_state_copy_span(p->arena, &bucket) && pass_state_copy_span(p->arena, &key);
    return ok ? add_write(p, bucket, key) : ERR_NO_MEMORY;
}

// Adds the keys that the head may change. Sets changes_bucket if it may change any key of the
// bucket.
static enum err add_head_keys(struct pass_state *p)
{
    const struct request *r = p->request;
    check(p->writes.key_count == 0 && !p->changes_bucket);
    enum err err = ERR_OK;
    for (unsigned i = 0; err == ERR_OK && i < r->effects.count; i++) {
        const struct s3_effect *effect = &r->effects.items[i];
        bool is_ours = span_equal(effect->bucket, r->s3.bucket);
        if (effect->changes && effect->scope == S3_SCOPE_KEY) {
            err = add_copied(p, is_ours ? r->origin_bucket : effect->bucket, effect->key);
        } else if (effect->changes) {
            check(is_ours);
            p->changes_bucket = true;
        }
    }
    return err;
}

enum err pass_keys_of_head(struct pass_state *p)
{
    check(p->phase == PASS_READ);
    check(p->origin == NULL);
    bool are_elsewhere = p->body.collect || p->request->s3.operation == S3_PostObject;
    return are_elsewhere ? ERR_OK : add_head_keys(p);
}

// Returns the rights that the change needs. A conditional change also needs the right to read
// (s3_effects.c).
static unsigned rights_for(const struct request *r, unsigned right, bool is_conditional)
{
    check(right != 0);
    return right | (is_conditional || r->effects.asks_what_is_there ? S3_ALLOW_READ : 0u);
}

#define KEY_SHOWN_MAX 1024u // bytes of the denied key in the message

// Refuses the whole batch. Its answer is the origin's document, which is passed on unchanged, so it
// could not have the errors of keys that the origin is not asked for.
static enum err deny_batch(struct pass_state *p, struct span key)
{
    char *text = arena_printf(p->arena,
                              "Nothing was deleted: this access key lacks a right on the key %.*s. "
                              "Ask again without the keys that it may not delete",
                              (int)min_u64(key.len, KEY_SHOWN_MAX), key.ptr);
    p->err_message = span_from_cstr(text);
    return text != NULL ? ERR_ACCESS_DENIED : ERR_NO_MEMORY;
}

static enum err add_deletes(struct pass_state *p)
{
    struct request *r = p->request;
    struct s3_delete delete = {0};
    struct span bucket = r->origin_bucket;
    enum err err = pass_xml_delete(p, &delete);
    if (err == ERR_OK && !pass_state_copy_span(p->arena, &bucket)) {
        err = ERR_NO_MEMORY;
    }
    for (size_t i = 0; err == ERR_OK && i < delete.count; i++) {
        const struct s3_delete_object *o = &delete.objects[i];
        struct span key = o->key;
        bool is_conditional = o->etag.len > 0 || o->last_modified_time.len > 0 || o->size.len > 0;
        err = gate_allows(r, rights_for(r, S3_ALLOW_DELETE, is_conditional), key)
                  ? add_write(p, bucket, key)
                  : deny_batch(p, key);
    }
    return err;
}

enum err pass_keys_of_form(struct pass_state *p, struct span key)
{
    check(p->kind == PASS_KIND_S3);
    check(p->writes.key_count == 0);
    const struct request *r = p->request;
    if (!gate_allows(r, rights_for(r, S3_ALLOW_WRITE, false), key)) {
        p->err_message = SPAN("The form's key may not be written by this access key");
        return ERR_ACCESS_DENIED;
    }
    return add_copied(p, r->origin_bucket, key);
}

enum err pass_keys_of_body(struct pass_state *p)
{
    check(p->body.collect && p->body.is_verified);
    check(p->phase == PASS_READ);
    const struct s3_request *s3 = &p->request->s3;
    if (s3->operation == S3_DeleteObjects) {
        return add_deletes(p);
    }
    enum err err = s3->operation == S3_RestoreObject ? pass_xml_restore(p) : ERR_OK;
    return err == ERR_OK && p->writes.key_count == 0 ? add_head_keys(p) : err;
}
