// SPDX-License-Identifier: Apache-2.0
// Which keys a request changes: what its head may do (r->effects), the key of a form, or those in
// the body of a batch delete; or all of a bucket, where nothing names them. Each becomes a key_write
// with a key of its own, so that it may outlive the request, in every place that may hold what the
// write replaces: each realm, each name that a configuration gives the bucket or has given it (places.c), and the
// path that an origin on files makes of the key. On the request's worker, while the client is there; the realms
// and places that a reload has brought meanwhile follow when the origin has answered.
#include "proxy/pass_private.h"

#include <stdlib.h>
#include <string.h>

// The realms that may hold the key: the common one (index 0) and those of the keys file.
static size_t realm_count(const struct pass_state *p)
{
    size_t count = 0;
    if (p->table != NULL) {
        (void)access_keys_realms(p->table, &count);
    }
    return count + 1;
}

static struct span realm_at(const struct pass_state *p, size_t index)
{
    size_t count;
    return index == 0 ? p->pw->proxy->realm : access_keys_realms(p->table, &count)[index - 1];
}

// Before the first of them begins: from then on the array does not move.
static struct key_write *write_new(struct pass_state *p)
{
    if (p->write_count == p->writes_max) {
        p->writes_max = p->writes_max > 0 ? 2 * p->writes_max : 4;
        p->writes = realloc(p->writes, p->writes_max * sizeof(*p->writes));
        check(p->writes != NULL);
    }
    struct key_write *kw = &p->writes[p->write_count++];
    memset(kw, 0, sizeof(*kw));
    return kw;
}

static void add_in_realms(struct pass_state *p, struct origin *origin, struct span bucket,
                          struct span key)
{
    struct request *r = p->request;
    const struct proxy_rule *rule = rules_find(r->live, r->s3.bucket, key);
    size_t realms = realm_count(p);
    for (size_t i = 0; i < realms; i++) {
        struct key_write *kw = write_new(p); // one for each realm, side by side
        kw->key = request_object_key_in(r, origin, realm_at(p, i), bucket, key, rule);
    }
}

static bool is_same_place(const struct origin *a, const struct origin *b)
{
    return b != NULL && a != b && strcmp(origin_place(a), origin_place(b)) == 0;
}

// A bucket with settings of its own has an origin of its own, and may be another one's by another
// name: the same bucket at the same place is one.
static void add_under_names(struct pass_state *p, struct span bucket, struct span key)
{
    struct request *r = p->request;
    const struct proxy *proxy = r->pw->proxy;
    struct origin *by_default = proxy->options.default_origin;
    add_in_realms(p, r->origin, bucket, key);
    if (is_same_place(r->origin, by_default)) {
        add_in_realms(p, by_default, bucket, key);
    }
    for (unsigned i = 0; i < p->place_count; i++) {
        const struct place *place = &proxy->places.items[i];
        if (is_same_place(r->origin, place->origin) && span_equal_cstr(bucket, place->bucket)) {
            add_in_realms(p, place->origin, bucket, key);
        }
    }
}

static bool has_realm(const struct pass_state *p, struct span realm)
{
    for (size_t i = 0; i < realm_count(p); i++) {
        if (span_equal(realm_at(p, i), realm)) {
            return true;
        }
    }
    return false;
}

// Realms that the request did not know, and its worker does; ret_realms may be NULL.
static size_t late_realms(const struct pass_state *p, struct span *ret_realms)
{
    size_t count = 0, late = 0;
    if (p->pw->known == NULL || p->pw->known == p->table) {
        return 0;
    }
    const struct span *realms = access_keys_realms(p->pw->known, &count);
    for (size_t i = 0; i < count; i++) {
        if (!has_realm(p, realms[i])) {
            if (ret_realms != NULL) {
                ret_realms[late] = realms[i];
            }
            late++;
        }
    }
    return late;
}

static void add_late(struct pass_state *p, struct object_key *key)
{
    struct key_write *kw = &p->late_writes[p->late_count++];
    memset(kw, 0, sizeof(*kw));
    kw->key = key;
}

static void add_late_place(struct pass_state *p, const struct object_key *key,
                           const struct place *place, const struct span *realms, size_t count)
{
    const struct store *store = p->pw->store;
    if (!is_same_place(key->origin, place->origin) ||
        !span_equal_cstr(key->bucket, place->bucket)) {
        return;
    }
    uint64_t epoch = fill_epoch(store, place->origin, key->bucket);
    for (size_t i = 0; i < realm_count(p) + count; i++) {
        struct span realm = i < realm_count(p) ? realm_at(p, i) : realms[i - realm_count(p)];
        add_late(p, object_key_of_origin(store, key, place->origin, epoch, realm));
    }
}

// What was read in a realm, or by the name of an origin, that a reload brought while the origin worked may be the old
// object.
void pass_keys_find_late(struct pass_state *p)
{
    const struct proxy *proxy = p->pw->proxy;
    unsigned places = places_count(proxy), groups = p->write_count / (unsigned)realm_count(p);
    size_t count = late_realms(p, NULL);
    if (p->write_count == 0 || (count == 0 && places == p->place_count)) {
        return;
    }
    struct span *realms = calloc(count + 1, sizeof(*realms));
    size_t each = count + (places - p->place_count) * (realm_count(p) + count);
    p->late_writes = calloc(groups * each + 1, sizeof(*p->late_writes));
    check(realms != NULL && p->late_writes != NULL);
    (void)late_realms(p, realms);
    for (unsigned i = 0; i < p->write_count; i += (unsigned)realm_count(p)) {
        const struct object_key *key = p->writes[i].key;
        for (size_t r = 0; r < count; r++) {
            add_late(p, object_key_in_realm(p->pw->store, key, realms[r]));
        }
        for (unsigned n = p->place_count; n < places && key->origin == p->origin; n++) {
            add_late_place(p, key, &proxy->places.items[n], realms, count);
        }
    }
    free(realms);
}

// `bucket` by the name that the origin has for it.
static enum err add_write(struct pass_state *p, struct span bucket, struct span key)
{
    struct s3_path path;
    if (key.len > S3_KEY_MAX) {
        return ERR_KEY_TOO_LONG;
    }
    s3_key_as_path(key, &path);
    if (path.leaves) {
        return ERR_INVALID_URI; // what it changes lies in no bucket, or in another; S3 refuses it, too
    }
    add_under_names(p, bucket, key);
    if (path.differs && path.len > 0) {
        add_under_names(p, bucket, (struct span){path.text, path.len});
    }
    return ERR_OK;
}

// What the head may change: a key, or whatever its bucket holds.
static enum err add_head_keys(struct pass_state *p)
{
    const struct request *r = p->request;
    enum err err = ERR_OK;
    for (unsigned i = 0; err == ERR_OK && i < r->effects.count; i++) {
        const struct s3_effect *effect = &r->effects.items[i];
        bool is_ours = span_equal(effect->bucket, r->s3.bucket);
        if (effect->changes && effect->scope == S3_SCOPE_KEY) {
            err = add_write(p, is_ours ? r->origin_bucket : effect->bucket, effect->key);
        } else if (effect->changes) {
            check(is_ours);
            p->changes_bucket = true;
        }
    }
    return err;
}

enum err pass_keys_of_head(struct pass_state *p)
{
    bool are_elsewhere = p->body.collect || p->request->s3.operation == S3_PostObject;
    return are_elsewhere ? ERR_OK : add_head_keys(p);
}

// The right to do it; on a condition, the right to read besides (s3_effects.c).
static unsigned rights_for(const struct request *r, unsigned right, bool is_conditional)
{
    return right | (is_conditional || r->effects.asks_what_is_there ? S3_ALLOW_READ : 0u);
}

static enum err add_deletes(struct pass_state *p)
{
    struct request *r = p->request;
    struct s3_delete delete = {0};
    enum err err = pass_xml_delete(p, &delete);
    for (size_t i = 0; err == ERR_OK && i < delete.count; i++) {
        const struct s3_delete_object *o = &delete.objects[i];
        struct span key = o->key;
        bool is_conditional = o->etag.len > 0 || o->last_modified_time.len > 0 || o->size.len > 0;
        if (!gate_allows(r, rights_for(r, S3_ALLOW_DELETE, is_conditional), key)) {
            p->err_message = SPAN("At least one of the keys may not be deleted by this access key");
            err = ERR_ACCESS_DENIED;
        } else {
            err = add_write(p, r->origin_bucket, key);
        }
    }
    return err;
}

enum err pass_keys_of_form(struct pass_state *p, struct span key)
{
    const struct request *r = p->request;
    if (!gate_allows(r, rights_for(r, S3_ALLOW_WRITE, false), key)) {
        p->err_message = SPAN("The form's key may not be written by this access key");
        return ERR_ACCESS_DENIED;
    }
    return add_write(p, r->origin_bucket, key);
}

enum err pass_keys_of_body(struct pass_state *p)
{
    const struct s3_request *s3 = &p->request->s3;
    if (s3->operation == S3_DeleteObjects) {
        return add_deletes(p);
    }
    enum err err = s3->operation == S3_RestoreObject ? pass_xml_restore(p) : ERR_OK;
    return err == ERR_OK && p->write_count == 0 ? add_head_keys(p) : err;
}
