// SPDX-License-Identifier: Apache-2.0
// Keys of TLS session tickets. A key encrypts for an hour and decrypts for one more; then the next
// handshake wipes it. So an attacker who gets our keys later cannot decrypt a recorded connection
// that was resumed. All workers and certificates share the keys, so that a session resumes on any
// of them.
//
// A handshake on any worker copies the key it needs under a lock, which is held only for the copy.
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "http/http_private.h"

#define TICKET_KEY_MS (3600u * 1000)

struct ticket_key {
    bool is_set;
    uint64_t made_ms;
    uint8_t name[16], cipher[32], mac[32];
};

struct http_tickets {
    struct {
        pthread_mutex_t lock;      // while it is held, only OpenSSL's random numbers are called
        struct ticket_key keys[2]; // the key that encrypts now, and the previous one
    } guarded;
};

static void key_make(struct ticket_key *key, uint64_t now_ms)
{
    *key = (struct ticket_key){.is_set = true, .made_ms = now_ms};
    check(RAND_bytes(key->name, sizeof(key->name)) == 1);
    check(RAND_priv_bytes(key->cipher, sizeof(key->cipher)) == 1);
    check(RAND_priv_bytes(key->mac, sizeof(key->mac)) == 1);
}

static void rotate_locked(struct http_tickets *t)
{
    uint64_t now_ms = clock_monotonic_ms();
    struct ticket_key *now = &t->guarded.keys[0], *before = &t->guarded.keys[1];
    uint64_t age_ms = now->is_set ? now_ms - now->made_ms : UINT64_MAX;
    if (age_ms < TICKET_KEY_MS) {
        return;
    }
    OPENSSL_cleanse(before, sizeof(*before));
    if (age_ms < 2 * TICKET_KEY_MS) {
        *before = *now;
    }
    key_make(now, now_ms);
}

// Finds the key to encrypt with (`name` NULL), or the key of this name. Returns 0: none, 1: the
// current key, 2: the previous one.
static int key_get(struct http_tickets *t, const unsigned char *name, struct ticket_key *ret_key)
{
    int found = name == NULL ? 1 : 0;
    check(pthread_mutex_lock(&t->guarded.lock) == 0);
    rotate_locked(t);
    for (int i = 0; i < 2 && found == 0; i++) {
        const struct ticket_key *key = &t->guarded.keys[i];
        found = key->is_set && memcmp(key->name, name, sizeof(key->name)) == 0 ? i + 1 : 0;
    }
    if (found != 0) {
        *ret_key = t->guarded.keys[found - 1];
    }
    check(pthread_mutex_unlock(&t->guarded.lock) == 0);
    return found;
}

static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
                     EVP_MAC_CTX *mac, int seal)
{
    struct http_tickets *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    struct ticket_key key;
    char digest[] = "SHA256";
    int found = key_get(t, seal ? NULL : name, &key);
    if (found == 0) {
        return 0;
    }
    if (seal) {
        memcpy(name, key.name, sizeof(key.name));
    }
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, key.mac, sizeof(key.mac)),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_end()};
    bool ok = (!seal || RAND_bytes(iv, EVP_MAX_IV_LENGTH) == 1) &&
              EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, key.cipher, iv, seal) == 1 &&
              EVP_MAC_CTX_set_params(mac, params) == 1;
    OPENSSL_cleanse(&key, sizeof(key));
    return ok ? found : -1; // 2 makes OpenSSL issue a new ticket
}

struct http_tickets *http_tickets_new(void)
{
    struct http_tickets *t = calloc(1, sizeof(*t));
    check(t != NULL);
    check(pthread_mutex_init(&t->guarded.lock, NULL) == 0);
    return t;
}

void http_tickets_free(struct http_tickets *t)
{
    if (t != NULL) {
        check(pthread_mutex_destroy(&t->guarded.lock) == 0);
        OPENSSL_cleanse(t, sizeof(*t));
        free(t);
    }
}

void http_tickets_attach(struct http_tickets *t, SSL_CTX *ctx)
{
    SSL_CTX_set_app_data(ctx, t);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF); // tickets contain the session's state
    SSL_CTX_set_timeout(ctx, TICKET_KEY_MS / 1000);
    check(SSL_CTX_set_tlsext_ticket_key_evp_cb(ctx, on_ticket) == 1);
}
