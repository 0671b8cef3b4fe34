// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 on the sockets of the origin and of the client, as S3 negotiates it: AES-128-GCM. The
// calls return what send() and recv() do, with the same errno.
#pragma once

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

enum { TLS_RECORD_BYTES = 1 << 14 };

static inline SSL_CTX *tls_checked(SSL_CTX *context, int good)
{
    if (!context || !good) {
        ERR_print_errors_fp(stderr);
        exit(2);
    }
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    return context;
}

// CHAIN: the file of the certificate chain and of its key.
static inline SSL_CTX *tls_server(const char *chain)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    return tls_checked(context,
                       context && SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") &&
                           SSL_CTX_use_certificate_chain_file(context, chain) == 1 &&
                           SSL_CTX_use_PrivateKey_file(context, chain, SSL_FILETYPE_PEM) == 1);
}

// Trusts any certificate.
static inline SSL_CTX *tls_client(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    return tls_checked(context,
                       context && SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256"));
}

static inline SSL *tls_session(SSL_CTX *context, int fd)
{
    SSL *session = SSL_new(context);
    if (!session || !SSL_set_fd(session, fd))
        abort();
    return session;
}

static inline ssize_t tls_failed(SSL *session, int n)
{
    const int error = SSL_get_error(session, n);
    if (error == SSL_ERROR_ZERO_RETURN)
        return 0;
    errno = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? EAGAIN : EPIPE;
    return -1;
}

static inline ssize_t tls_send(SSL *session, const void *data, size_t length)
{
    ERR_clear_error();
    const int n = SSL_write(session, data, (int)length);
    return n > 0 ? n : tls_failed(session, n);
}

// Reads whole records. The session keeps the rest of a record for which there is no room, where
// epoll does not see it; so ROOM is at least TLS_RECORD_BYTES if such may come.
static inline ssize_t tls_recv(SSL *session, void *to, size_t room)
{
    size_t done = 0;
    do {
        ERR_clear_error();
        const int n = SSL_read(session, (char *)to + done, (int)(room - done));
        if (n <= 0)
            return done ? (ssize_t)done : tls_failed(session, n);
        done += (size_t)n;
    } while (room - done >= TLS_RECORD_BYTES);
    return (ssize_t)done;
}
