// SPDX-License-Identifier: Apache-2.0
// The certificate authorities for checking origins' certificates. Reading and parsing the system's
// file takes a worker tens of ms and a MiB of memory, and curl keeps the result only for one lane.
// So this file parses each authority file once, when the first connection needs it. All threads
// share the result until the process ends.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "net/transfer_private.h"

// Files that are kept parsed: origin.ca_file and the system's. Others are parsed each time.
#define FILES_MAX 8u

static struct {
    pthread_mutex_t lock;
    struct {
        char *path;
        X509_STORE *store;
    } files[FILES_MAX];
} parsed = {.lock = PTHREAD_MUTEX_INITIALIZER};

const char *transfer_system_authorities(void)
{
    const char *const files[] = {
        curl_version_info(CURLVERSION_NOW)->cainfo,
        "/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Red Hat, Fedora, Amazon Linux
        "/etc/pki/tls/certs/ca-bundle.crt",                  // older ones of these
        "/etc/ssl/ca-bundle.pem",                            // SUSE
        "/etc/ssl/cert.pem",                                 // Alpine
    };
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        if (files[i] != NULL && host_file_is_regular(files[i])) {
            return files[i];
        }
    }
    return files[0];
}

// Returns NULL if the file cannot be read or has no authority.
static X509_STORE *parse(const char *path)
{
    X509_STORE *store = X509_STORE_new();
    check(store != NULL);
    ERR_clear_error();
    if (!host_file_is_regular(path) || X509_STORE_load_file(store, path) != 1) {
        X509_STORE_free(store);
        ERR_clear_error();
        return NULL;
    }
    // These are the flags that curl sets for its own store.
    check(X509_STORE_set_flags(store, X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN) == 1);
    return store;
}

// Returns the parsed file as a reference that the caller owns. NULL: the file is not usable.
static X509_STORE *authorities(const char *path)
{
    X509_STORE *store = NULL;
    check(pthread_mutex_lock(&parsed.lock) == 0);
    unsigned i = 0;
    while (i < FILES_MAX && parsed.files[i].path != NULL &&
           strcmp(parsed.files[i].path, path) != 0) {
        i++;
    }
    if (i == FILES_MAX) {
        store = parse(path);
    } else if (parsed.files[i].path != NULL) {
        store = parsed.files[i].store;
        check(X509_STORE_up_ref(store) == 1);
    } else if ((store = parse(path)) != NULL) {
        parsed.files[i].path = strdup(path);
        check(parsed.files[i].path != NULL);
        parsed.files[i].store = store;
        check(X509_STORE_up_ref(store) == 1);
    }
    check(pthread_mutex_unlock(&parsed.lock) == 0);
    return store;
}

struct transfer_authorities {
    char *path;
    X509_STORE *store;
};

enum err transfer_authorities_load(const char *ca_file, struct transfer_authorities **ret_fresh)
{
    X509_STORE *store = parse(ca_file);
    if (store == NULL) {
        return ERR_INVALID;
    }
    struct transfer_authorities *fresh = calloc(1, sizeof(*fresh));
    check(fresh != NULL);
    *fresh = (struct transfer_authorities){strdup(ca_file), store};
    check(fresh->path != NULL);
    *ret_fresh = fresh;
    return ERR_OK;
}

void transfer_authorities_free(struct transfer_authorities *fresh)
{
    if (fresh != NULL) {
        X509_STORE_free(fresh->store); // drops our reference
        free(fresh->path);
        free(fresh);
    }
}

void transfer_authorities_use(struct transfer_authorities *fresh)
{
    check(pthread_mutex_lock(&parsed.lock) == 0);
    for (unsigned i = 0; i < FILES_MAX; i++) {
        if (parsed.files[i].path == NULL) {
            parsed.files[i].path = strdup(fresh->path);
            check(parsed.files[i].path != NULL);
        }
        if (strcmp(parsed.files[i].path, fresh->path) == 0) {
            X509_STORE *was = parsed.files[i].store;
            parsed.files[i].store = fresh->store;
            fresh->store = was; // connections that use the old store hold references to it
            break;
        }
    }
    check(pthread_mutex_unlock(&parsed.lock) == 0);
    transfer_authorities_free(fresh);
}

// curl calls this before the handshake. It has loaded no authorities itself, so the connection
// fails unless this sets some.
static CURLcode on_curl_ssl_ctx(CURL *easy, void *ssl_ctx, void *ctx)
{
    (void)easy;
    const struct transfer_pool *pool = ctx;
    check(pool->magic == POOL_MAGIC);
    X509_STORE *store = authorities(pool->ca_file);
    if (store == NULL) {
        return CURLE_SSL_CACERT_BADFILE;
    }
    SSL_CTX_set_cert_store(ssl_ctx, store); // takes our reference
    return CURLE_OK;
}

void transfer_set_authorities(struct transfer *t)
{
    CURL *easy = t->easy;
    CURL_SET(easy, CURLOPT_SSL_VERIFYPEER, 1L);
    CURL_SET(easy, CURLOPT_SSL_VERIFYHOST, 2L);
    if (t->pool->ca_file != NULL) {
        CURL_SET(easy, CURLOPT_CAINFO, NULL);
        CURL_SET(easy, CURLOPT_CAPATH, NULL);
        // Without this, curl would cache the store of a lane's first connection. For later
        // connections, it would then replace our store by the cached one after this callback.
        CURL_SET(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);
        CURL_SET(easy, CURLOPT_SSL_CTX_FUNCTION, on_curl_ssl_ctx);
        CURL_SET(easy, CURLOPT_SSL_CTX_DATA, t->pool);
    }
}
