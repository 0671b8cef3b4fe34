// SPDX-License-Identifier: Apache-2.0
// TLS on accepted sockets: OpenSSL, non-blocking, TLS 1.2 and later, only ciphers with forward
// secrecy and authentication. There is no renegotiation, so a read never has to write and a write
// never has to read. A reload of the configuration reads the files of the certificate again, before
// worker 0 gets them, so a file that does not load changes nothing. Connections keep the
// certificate with which they began.
//
// struct http_tls belongs to worker 0, which accepts; an SSL belongs to its connection's worker.
// OpenSSL's error queue is per thread and shared with libcurl, so it is cleared before each call
// whose result matters.
#include <errno.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <openssl/x509err.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/host.h"
#include "base/log.h"
#include "http/http_private.h"

#define TLS12_CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20" // all of TLS 1.3's are of this kind

// See http_certificate_life().
static _Atomic int64_t life_from_s, life_until_s;

struct http_certificate {
    struct message message;
    struct http_tls *tls; // its user
    char *cert_file;
    SSL_CTX *ctx;
};

struct http_tls {
    struct http_certificate *now;
    struct http_tickets *tickets;
};

static int on_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                   const unsigned char *in, unsigned in_len, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1";
    unsigned char *chosen = NULL;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&chosen, out_len, ours, sizeof(ours) - 1, in, in_len) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_NOACK;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

// Returns true if OpenSSL has refused a key because it does not fit the certificate.
static bool is_of_another_pair(void)
{
    unsigned long error = ERR_peek_error();
    return ERR_GET_LIB(error) == ERR_LIB_X509 &&
           ERR_GET_REASON(error) == X509_R_KEY_VALUES_MISMATCH;
}

static void why_from_openssl(const char *key, const char *what, const char *path, char *why,
                             size_t size)
{
    char text[128];
    unsigned long error = ERR_peek_error();
    if (ERR_GET_LIB(error) == ERR_LIB_PEM) {
        (void)snprintf(why, size, "%s %s: it holds no %s in PEM form (-----BEGIN ...)", key, path,
                       what);
        return;
    }
    ERR_error_string_n(error, text, sizeof(text));
    (void)snprintf(why, size, "%s %s: no %s that can be used: %s", key, path, what, text);
}

// Returns true for an existing file such as a FIFO. OpenSSL reports a missing one.
static bool is_special(const char *path)
{
    return access(path, F_OK) == 0 && !host_file_is_regular(path);
}

// Returns NULL and one line in `why` on failure. Blocks on the files.
static SSL_CTX *ctx_load(const char *cert_file, const char *key_file, struct http_tickets *tickets,
                         char *why, size_t size)
{
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    check(ctx != NULL);
    check(SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) == 1);
    check(SSL_CTX_set_cipher_list(ctx, TLS12_CIPHERS) == 1);
    http_tickets_attach(tickets, ctx);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(ctx, on_alpn, NULL);
    if (is_special(cert_file) || is_special(key_file)) {
        (void)snprintf(why, size, "listen_tls.cert %s and listen_tls.key %s must be regular files",
                       cert_file, key_file);
    } else if (SSL_CTX_use_certificate_chain_file(ctx, cert_file) != 1) {
        why_from_openssl("listen_tls.cert", "certificate", cert_file, why, size);
    } else if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1 &&
               !is_of_another_pair()) {
        why_from_openssl("listen_tls.key", "private key", key_file, why, size);
    } else if (SSL_CTX_check_private_key(ctx) != 1) {
        (void)snprintf(why, size, "listen_tls.key %s: it does not belong to the certificate %s",
                       key_file, cert_file);
    } else {
        return ctx;
    }
    ERR_clear_error();
    SSL_CTX_free(ctx);
    return NULL;
}

static void note_life(const SSL_CTX *ctx)
{
    const X509 *certificate = SSL_CTX_get0_certificate(ctx);
    struct tm from, until;
    if (ASN1_TIME_to_tm(X509_get0_notBefore(certificate), &from) == 1 &&
        ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &until) == 1) {
        atomic_store(&life_from_s, timegm(&from));
        atomic_store(&life_until_s, timegm(&until));
    }
}

struct http_certificate_life http_certificate_life(void)
{
    return (struct http_certificate_life){atomic_load(&life_from_s), atomic_load(&life_until_s)};
}

// Returns ERR_INVALID and one line in ret_why on failure. Blocks on the files.
static enum err certificate_load(struct http_tls *tls, const char *cert_file, const char *key_file,
                                 struct http_certificate **ret_certificate, struct buf *ret_why)
{
    char why[256];
    struct http_certificate *c = calloc(1, sizeof(*c));
    check(c != NULL);
    c->tls = tls;
    c->cert_file = strdup(cert_file);
    check(c->cert_file != NULL);
    c->ctx = ctx_load(cert_file, key_file, tls->tickets, why, sizeof(why));
    if (c->ctx == NULL) {
        buf_append_cstr(ret_why, why);
        http_certificate_free(c);
        return ERR_INVALID;
    }
    *ret_certificate = c;
    return ERR_OK;
}

void http_certificate_free(struct http_certificate *certificate)
{
    if (certificate != NULL) {
        SSL_CTX_free(certificate->ctx);
        free(certificate->cert_file);
        free(certificate);
    }
}

enum err http_tls_new(const char *cert_file, const char *key_file, struct http_tls **ret_tls,
                      struct buf *ret_why)
{
    struct http_tls *tls = calloc(1, sizeof(*tls));
    check(tls != NULL);
    tls->tickets = http_tickets_new();
    enum err err = certificate_load(tls, cert_file, key_file, &tls->now, ret_why);
    if (err != ERR_OK) {
        http_tls_free(tls);
        return err;
    }
    note_life(tls->now->ctx);
    *ret_tls = tls;
    return ERR_OK;
}

void http_tls_free(struct http_tls *tls)
{
    if (tls == NULL) {
        return;
    }
    http_certificate_free(tls->now);
    http_tickets_free(tls->tickets);
    free(tls);
}

// --- Reloading ----------------------------------------------------------------------------------

enum err http_tls_load(struct http_tls *tls, const char *cert_file, const char *key_file,
                       struct http_certificate **ret_certificate, struct buf *ret_why)
{
    *ret_certificate = NULL;
    return cert_file != NULL && key_file != NULL
               ? certificate_load(tls, cert_file, key_file, ret_certificate, ret_why)
               : ERR_OK;
}

static void on_certificate(struct worker *to, struct message *message)
{
    (void)to;
    struct http_certificate *c = container_of(message, struct http_certificate, message);
    struct http_tls *tls = c->tls;
    http_certificate_free(tls->now);
    tls->now = c;
    note_life(c->ctx);
    log_info("tls_certificate_reloaded", "file=%s", log_quote(span_from_cstr(c->cert_file)));
}

void http_tls_use(struct http_certificate *certificate, struct worker *accepting)
{
    certificate->message.deliver = on_certificate;
    mailbox_send_from_any_thread(accepting, &certificate->message);
}

SSL *http_tls_accept(struct http_tls *tls, int fd)
{
    ERR_clear_error();
    SSL *ssl = SSL_new(tls->now->ctx);
    if (ssl == NULL || SSL_set_fd(ssl, fd) != 1) {
        SSL_free(ssl);
        ERR_clear_error();
        return NULL;
    }
    SSL_set_accept_state(ssl);
    return ssl;
}

// --- Calls of a connection -----------------------------------------------------------------------

static int result_of(SSL *ssl, int rc)
{
    int error = SSL_get_error(ssl, rc);
    int errno_value = errno;
    ERR_clear_error();
    switch (error) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return -EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        return errno_value > 0 && errno_value != EAGAIN ? -errno_value : -ECONNRESET;
    default:
        return -EPROTO;
    }
}

int http_tls_handshake(SSL *ssl)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(ssl);
    if (rc == 1) {
        return 1;
    }
    bool is_plain = ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST;
    int result = result_of(ssl, rc);
    return is_plain ? -EPROTONOSUPPORT : result == 0 ? -ECONNRESET : result;
}

int64_t http_tls_receive(SSL *ssl, char *bytes, size_t max)
{
    ERR_clear_error();
    int rc = SSL_read(ssl, bytes, (int)min_u64(max, INT32_MAX));
    return rc > 0 ? rc : result_of(ssl, rc);
}

// Sends waiting bytes as one record. After "would block" the same bytes come first again, so the
// record is repeated.
int64_t http_tls_send(SSL *ssl, char *record, const struct iovec *iov, unsigned iov_count)
{
    check(iov_count > 0);
    const char *bytes = iov[0].iov_base;
    size_t len = iov[0].iov_len;
    if (len < HTTP_TLS_RECORD && iov_count > 1) {
        len = 0;
        for (unsigned i = 0; i < iov_count && len < HTTP_TLS_RECORD; i++) {
            size_t piece = (size_t)min_u64(iov[i].iov_len, HTTP_TLS_RECORD - len);
            memcpy(record + len, iov[i].iov_base, piece);
            len += piece;
        }
        bytes = record;
    }
    ERR_clear_error();
    int rc = SSL_write(ssl, bytes, (int)min_u64(len, HTTP_TLS_RECORD));
    if (rc > 0) {
        return rc;
    }
    int result = result_of(ssl, rc);
    return result == 0 ? -EPIPE : result;
}
