// SPDX-License-Identifier: Apache-2.0
// Signing keys: derived once a day for each secret, region and service, and kept by the thread that
// asked. A key serves one day: when one of another day is made the old ones are wiped, and all of
// them when the thread ends.
#define OPENSSL_SUPPRESS_DEPRECATED // as in sigv4.c
#include "s3/s3_private.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <string.h>

#define KEY_CACHE_SIZE 64u

static void sha256_add(SHA256_CTX *ctx, struct span piece)
{
    uint64_t len = piece.len;
    SHA256_Update(ctx, &len, sizeof(len));
    SHA256_Update(ctx, piece.ptr, piece.len);
}

static void derive_signing_key(struct span secret, struct span date, struct span region,
                               struct span service, uint8_t *ret_key)
{
    // The secret with its prefix is hashed as a key first when it is longer than a block.
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

struct cached_key {
    bool used;
    char date[8];
    uint8_t id[SHA256_DIGEST_LENGTH];
    uint8_t key[SHA256_DIGEST_LENGTH];
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
        if (cached->used && !span_equal((struct span){cached->date, sizeof(cached->date)}, date)) {
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

void sigv4_signing_key(struct span access_key, struct span secret, struct span date,
                       struct span region, struct span service, uint8_t *ret_key)
{
    SHA256_CTX ctx;
    uint8_t id[SHA256_DIGEST_LENGTH];
    SHA256_Init(&ctx);
    sha256_add(&ctx, access_key);
    sha256_add(&ctx, secret);
    sha256_add(&ctx, date);
    sha256_add(&ctx, region);
    sha256_add(&ctx, service);
    SHA256_Final(id, &ctx);
    struct cached_key *cached = &key_cache[id[0] % KEY_CACHE_SIZE];
    if (!cached->used || CRYPTO_memcmp(cached->id, id, sizeof(id)) != 0) {
        key_cache_wipe_other_days(date);
        derive_signing_key(secret, date, region, service, cached->key);
        memcpy(cached->date, date.ptr, min_u64(date.len, sizeof(cached->date)));
        memcpy(cached->id, id, sizeof(id));
        cached->used = true;
    }
    memcpy(ret_key, cached->key, sizeof(cached->key));
}
