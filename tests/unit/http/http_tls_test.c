// SPDX-License-Identifier: Apache-2.0
// Proves: TLS 1.2 is spoken with forward secrecy and authenticated ciphers only, and sessions are
// resumed on any worker with keys that change.
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/pem.h>

#include "base/clock.h"
#include "front.h"
#include "test.h"
#include "waiting.h"

#define HOUR_US 3600000000ull

static char cert_path[200], key_path[200];

static void write_certificate(EVP_PKEY *key)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(cert_path, sizeof(cert_path), "%s/forebay-tls-%d.pem", tmp != NULL ? tmp : "/tmp",
             (int)getpid());
    snprintf(key_path, sizeof(key_path), "%s/forebay-tls-%d.key", tmp != NULL ? tmp : "/tmp",
             (int)getpid());
    X509 *x509 = X509_new();
    cr_assert(key != NULL && x509 != NULL);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
    X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x509), 86400);
    X509_set_pubkey(x509, key);
    X509_NAME *subject = X509_get_subject_name(x509);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)"n", -1, -1, 0);
    X509_set_issuer_name(x509, subject);
    cr_assert(X509_sign(x509, key, EVP_sha256()) > 0);
    FILE *file = fopen(cert_path, "w");
    cr_assert(file != NULL && PEM_write_X509(file, x509) == 1);
    fclose(file);
    file = fopen(key_path, "w");
    cr_assert(file != NULL && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(file);
    X509_free(x509);
    EVP_PKEY_free(key);
}

static EVP_PKEY *make_ec_key(void)
{
    return EVP_EC_gen("P-256");
}

static EVP_PKEY *make_rsa_key(void)
{
    return EVP_RSA_gen(2048);
}

static struct front *start_with(EVP_PKEY *key, unsigned workers, uint64_t max_held_bytes)
{
    static const char *const listen[] = {"tls:127.0.0.1:0"};
    struct http_tls *tls = NULL;
    write_certificate(key);
    cr_assert_eq(http_tls_new(cert_path, key_path, &tls, NULL), ERR_OK);
    return front_new((struct http_options){.listen = listen,
                                           .listen_count = 1,
                                           .tls = tls,
                                           .limits.max_held_bytes = max_held_bytes},
                     workers);
}

static struct front *start(EVP_PKEY *key, unsigned workers)
{
    return start_with(key, workers, 0);
}

static void stop(struct front *f)
{
    front_free(f);
    unlink(cert_path);
    unlink(key_path);
}

// Makes one connection. Takes *session and replaces it by a newer one. Returns the result of the
// handshake.
static bool connect_once(const struct front *f, int version, const char *ciphers,
                         SSL_SESSION **session, bool *ret_reused)
{
    int fd = client_connect(f->address);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(ctx, 0);
    SSL_CTX_set_max_proto_version(ctx, version);
    if (ciphers != NULL) {
        cr_assert_eq(SSL_CTX_set_cipher_list(ctx, ciphers), 1, "%s", ciphers);
    }
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    if (session != NULL && *session != NULL) {
        cr_assert_eq(SSL_set_session(ssl, *session), 1);
    }
    bool ok = SSL_connect(ssl) == 1;
    if (ok && session != NULL) {
        static const char request[] = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        char text[4096];
        cr_assert(SSL_write(ssl, request, sizeof(request) - 1) > 0);
        while (SSL_read(ssl, text, sizeof(text)) > 0) {
        }
        *ret_reused = SSL_session_reused(ssl) == 1;
        SSL_SESSION_free(*session);
        *session = SSL_get1_session(ssl);
    }
    (void)SSL_shutdown(ssl);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
    return ok;
}

// A renewal that has replaced only one of the files is refused by what is wrong with it.
Test(http_tls, key_of_another_certificate_is_refused)
{
    EVP_PKEY *(*const makers[])(void) = {make_ec_key, make_rsa_key};
    char whole[sizeof(cert_path) + 8];
    for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
        struct http_tls *tls = NULL;
        struct buf why;
        buf_init(&why, 4096);
        write_certificate(make_ec_key());
        (void)snprintf(whole, sizeof(whole), "%s.first", cert_path);
        cr_assert_eq(rename(cert_path, whole), 0);
        write_certificate(makers[i]());
        cr_assert_eq(http_tls_new(whole, key_path, &tls, &why), ERR_INVALID);
        cr_assert(strstr(buf_cstr(&why), "does not belong to the certificate") != NULL, "%s",
                  buf_cstr(&why));
        buf_done(&why);
        unlink(whole);
        unlink(cert_path);
        unlink(key_path);
    }
}

Test(http_tls, suites)
{
    static const struct {
        const char *cipher;
        bool accepted;
    } rows[] = {{"AES128-SHA", false},
                {"AES256-SHA256", false},
                {"AES128-GCM-SHA256", false},
                {"AES256-GCM-SHA384", false},
                {"AES128-CCM", false},
                {"ECDHE-RSA-AES128-SHA", false},
                {"ECDHE-RSA-AES128-SHA256", false},
                {"ECDHE-RSA-AES256-SHA384", false},
                {"DHE-RSA-AES128-GCM-SHA256", false},
                {"DHE-RSA-AES256-SHA", false},
                {"ECDHE-RSA-AES128-GCM-SHA256", true},
                {"ECDHE-RSA-AES256-GCM-SHA384", true},
                {"ECDHE-RSA-CHACHA20-POLY1305", true}};
    struct front *f = start(EVP_RSA_gen(2048), 1);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_assert_eq(connect_once(f, TLS1_2_VERSION, rows[i].cipher, NULL, NULL), rows[i].accepted,
                     "%s", rows[i].cipher);
    }
    cr_assert(connect_once(f, TLS1_3_VERSION, NULL, NULL, NULL));
    stop(f);
}

Test(http_tls, sessions_are_resumed_by_keys_that_change)
{
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    struct front *f = start(EVP_EC_gen("P-256"), 3);
    for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
        SSL_SESSION *session = NULL, *first = NULL, *second = NULL;
        bool reused = true;
        cr_assert(connect_once(f, versions[i], NULL, &session, &reused));
        cr_assert_not(reused);
        first = session;
        SSL_SESSION_up_ref(first);
        for (unsigned k = 0; k < 6; k++) { // on every worker
            cr_assert(connect_once(f, versions[i], NULL, &session, &reused));
            cr_assert(reused, "connection %u", k);
        }
        clock_test_advance_us(HOUR_US + HOUR_US / 2);
        cr_assert(connect_once(f, versions[i], NULL, &session, &reused));
        cr_assert(reused, "the key before still opens");
        second = session;
        SSL_SESSION_up_ref(second);
        clock_test_advance_us(HOUR_US);
        cr_assert(connect_once(f, versions[i], NULL, &session, &reused));
        cr_assert(reused, "a session opened with the previous key was sealed again");
        cr_assert(connect_once(f, versions[i], NULL, &first, &reused));
        cr_assert_not(reused, "what the first key sealed is gone with it");
        clock_test_advance_us(2 * HOUR_US + HOUR_US / 2);
        cr_assert(connect_once(f, versions[i], NULL, &session, &reused));
        cr_assert_not(reused, "nobody came for so long that no key is young enough");
        cr_assert(connect_once(f, versions[i], NULL, &second, &reused));
        cr_assert_not(reused, "nor is the one before it");
        SSL_SESSION_free(session);
        SSL_SESSION_free(first);
        SSL_SESSION_free(second);
    }
    stop(f);
}

// A handshake that never comes holds OpenSSL's buffers. Above max_held_bytes, one more is closed at
// once.
Test(http_tls, handshakes_within_the_memory)
{
    struct front *f = start_with(EVP_EC_gen("P-256"), 1, 2ul * 49152);
    int silent[2];
    for (unsigned i = 0; i < ARRAY_LEN(silent); i++) {
        silent[i] = client_connect(f->address);
    }
    int one_more = client_connect(f->address);
    cr_assert(client_at_end(one_more));
    close(one_more);
    cr_assert_eq(front_counted(f, COUNTER_http_shed_memory), 1ul);
    cr_assert(f->refusals == 1 && f->refused_for == COUNTER_http_shed_memory);
    client_reset(silent[0]);
    wait_for(http_server_connections(f->server) <= 1);
    for (unsigned i = 0; i < 10; i++) { // each gives back what it held
        cr_assert(connect_once(f, TLS1_3_VERSION, NULL, NULL, NULL));
        wait_for(http_server_connections(f->server) <= 1);
    }
    close(silent[1]);
    stop(f);
}
