// SPDX-License-Identifier: Apache-2.0
// Cache of signing keys. A thread derives a key once a day for each secret, region and service, and
// keeps it in its own cache. The cache also keeps the SHA-256 states after HMAC's two pads, because
// they are the same for everything that the key signs.
//
// The look-up compares all inputs of a key, including the secret, so a rotated secret never finds
// the old key. A key is valid for one day. A thread that adds a key wipes its keys of other days.
// When a thread ends, it wipes all its keys.
#define OPENSSL_SUPPRESS_DEPRECATED // as in sigv4.c
#include "s3/s3_private.h"

#include <openssl/crypto.h>
#include <pthread.h>
#include <string.h>

#include "base/hash.h"

#define KEY_CACHE_SIZE 64u
#define KEY_ID_MAX 256u // longer ids are not cached

static void derive_signing_key(struct span secret, struct span date, struct span region,
                               struct span service, uint8_t *ret_key)
{
    // HMAC demands that a key longer than a block is hashed first.
    uint8_t start[SHA256_CBLOCK] = {'A', 'W', 'S', '4'};
    size_t start_len = secret.len + 4;
    if (start_len > sizeof(start)) {
        SHA256_CTX ctx;
        SHA256_Init(&ctx);
        SHA256_Update(&ctx, start, 4);
        SHA256_Update(&ctx, secret.ptr, secret.len);
        SHA256_Final(start, &ctx);
        start_len = SHA256_DIGEST_LENGTH;
    } else if (secret.len > 0) {
        memcpy(start + 4, secret.ptr, secret.len);
    }
    sigv4_hmac_sha256(start, start_len, date, ret_key);
    sigv4_hmac_sha256(ret_key, SHA256_DIGEST_LENGTH, region, ret_key);
    sigv4_hmac_sha256(ret_key, SHA256_DIGEST_LENGTH, service, ret_key);
    sigv4_hmac_sha256(ret_key, SHA256_DIGEST_LENGTH, SPAN("aws4_request"), ret_key);
    OPENSSL_cleanse(start, sizeof(start));
}

static void key_init(struct sigv4_key *key)
{
    uint8_t pad[SHA256_CBLOCK];
    for (size_t i = 0; i < sizeof(pad); i++) {
        pad[i] = (i < sizeof(key->bytes) ? key->bytes[i] : 0) ^ 0x36;
    }
    SHA256_Init(&key->inner);
    SHA256_Update(&key->inner, pad, sizeof(pad));
    for (size_t i = 0; i < sizeof(pad); i++) {
        pad[i] ^= 0x36 ^ 0x5c;
    }
    SHA256_Init(&key->outer);
    SHA256_Update(&key->outer, pad, sizeof(pad));
    OPENSSL_cleanse(pad, sizeof(pad));
}

void sigv4_key_mac(const struct sigv4_key *key, struct span data, uint8_t *ret_mac)
{
    SHA256_CTX ctx = key->inner;
    SHA256_Update(&ctx, data.ptr, data.len);
    SHA256_Final(ret_mac, &ctx);
    ctx = key->outer;
    SHA256_Update(&ctx, ret_mac, SHA256_DIGEST_LENGTH);
    SHA256_Final(ret_mac, &ctx);
}

struct cached_key {
    size_t id_len; // 0: the entry is unused
    char date[8];
    char id[KEY_ID_MAX];
    struct sigv4_key key;
};

static _Thread_local struct cached_key key_cache[KEY_CACHE_SIZE];
static _Thread_local bool key_cache_has_end;
static pthread_key_t key_cache_end;
static pthread_once_t key_cache_once = PTHREAD_ONCE_INIT;

static void on_thread_end(void *cache)
{
    OPENSSL_cleanse(cache, sizeof(key_cache));
}

static void key_cache_begin(void)
{
    check(pthread_key_create(&key_cache_end, on_thread_end) == 0);
}

static void key_cache_wipe_other_days(struct span date)
{
    if (!key_cache_has_end) {
        check(pthread_once(&key_cache_once, key_cache_begin) == 0);
        check(pthread_setspecific(key_cache_end, key_cache) == 0);
        key_cache_has_end = true;
    }
    for (unsigned i = 0; i < KEY_CACHE_SIZE; i++) {
        struct cached_key *cached = &key_cache[i];
        if (cached->id_len > 0 &&
            !span_equal((struct span){cached->date, sizeof(cached->date)}, date)) {
            OPENSSL_cleanse(cached, sizeof(*cached));
        }
    }
}

#ifdef FOREBAY_FAULTS
unsigned sigv4_cached_keys(void)
{
    static const struct cached_key nothing;
    unsigned count = 0;
    for (unsigned i = 0; i < KEY_CACHE_SIZE; i++) {
        count += memcmp(&key_cache[i], &nothing, sizeof(nothing)) != 0;
    }
    return count;
}
#endif

// Joins the pieces, each with its length before it. Returns the length of the id; 0 if it would be
// too long.
static size_t key_id(const struct span *pieces, unsigned count, char *ret_id)
{
    size_t len = 0;
    for (unsigned i = 0; i < count; i++) {
        if (pieces[i].len + 1 > KEY_ID_MAX - len) {
            return 0;
        }
        ret_id[len++] = (char)pieces[i].len;
        if (pieces[i].len > 0) {
            memcpy(ret_id + len, pieces[i].ptr, pieces[i].len);
            len += pieces[i].len;
        }
    }
    return len;
}

// Removes the first piece of an id. Returns false if that is not `piece`.
static bool id_takes(struct span *id, struct span piece)
{
    if (piece.len + 1 > id->len || id->ptr[0] != (char)piece.len) {
        return false;
    }
    struct span kept = {id->ptr + 1, piece.len};
    id->ptr += piece.len + 1;
    id->len -= piece.len + 1;
    return span_equal(kept, piece);
}

const struct sigv4_key *sigv4_signing_key(struct span access_key, struct span secret,
                                          struct span date, struct span region, struct span service,
                                          struct sigv4_key *ret_own)
{
    const struct span pieces[] = {access_key, date, region, service, secret};
    uint64_t hash = hash64(access_key.ptr, access_key.len, 0);
    if (region.len > 0) { // so that keys for several regions do not replace each other
        hash = hash64(region.ptr, region.len, hash);
    }
    struct cached_key *cached = &key_cache[hash % KEY_CACHE_SIZE];
    struct span rest = {cached->id, cached->id_len};
    bool is_it = id_takes(&rest, access_key) && id_takes(&rest, date) && id_takes(&rest, region) &&
                 id_takes(&rest, service) && rest.len == secret.len + 1 &&
                 rest.ptr[0] == (char)secret.len &&
                 CRYPTO_memcmp(rest.ptr + 1, secret.ptr, secret.len) == 0;
    if (is_it) {
        return &cached->key;
    }
    char id[KEY_ID_MAX];
    size_t id_len = key_id(pieces, ARRAY_LEN(pieces), id);
    derive_signing_key(secret, date, region, service, ret_own->bytes);
    key_init(ret_own);
    if (id_len > 0) {
        key_cache_wipe_other_days(date);
        memcpy(cached->date, date.ptr, min_u64(date.len, sizeof(cached->date)));
        memcpy(cached->id, id, id_len);
        cached->id_len = id_len;
        cached->key = *ret_own;
    }
    OPENSSL_cleanse(id, sizeof(id));
    return ret_own;
}
