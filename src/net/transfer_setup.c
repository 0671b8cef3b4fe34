// SPDX-License-Identifier: Apache-2.0
// Sets the curl options of a request, so that curl sends exactly this request. Also maps curl's
// result codes to our errors. Runs on the pool's worker.
#include <string.h>

#include "base/chunk.h"
#include "base/headers.h"
#include "net/transfer_private.h"

// Sizes of curl's buffers, which each busy connection has. While memory is short, all sizes are
// LEAN_BUFFER_SIZE. Measured with long bodies: buffers of 128 KiB save a twentieth of the CPU time
// that 64 KiB cost, and 256 KiB save less.
#define RECEIVE_BUFFER_SIZE (64u * 1024)
#define LONG_BUFFER_SIZE TRANSFER_PIECE_MAX
#define UPLOAD_BUFFER_SIZE (128u * 1024)
#define LEAN_BUFFER_SIZE (16u * 1024)
// Memory of a transfer besides its buffers, ours and curl's; measured.
#define HANDLE_BYTES (24u * 1024)
#define HEADER_LINE_MAX (64u * 1024)
#define NAMES_KEPT_S 60L

// --- The request ---------------------------------------------------------------------------------

static long buffer_size(struct transfer *t, uint64_t plenty)
{
    uint64_t size = chunk_budget_is_short() ? LEAN_BUFFER_SIZE : plenty;
    t->held_bytes += size;
    return (long)size;
}

static void slist_add(struct curl_slist **list, const char *line)
{
    struct curl_slist *longer = curl_slist_append(*list, line);
    check(longer != NULL);
    *list = longer;
}

// Returns true for headers that curl writes itself, from body_length.
static bool header_is_framing(struct span name)
{
    return span_equal_nocase(name, SPAN("Content-Length")) ||
           span_equal_nocase(name, SPAN("Transfer-Encoding")) ||
           span_equal_nocase(name, SPAN("Expect"));
}

static enum err transfer_set_headers(struct transfer *t, const struct transfer_request *request)
{
    // "Name:" without a value keeps curl from adding this header itself.
    slist_add(&t->headers, "Expect:");
    bool has_accept = false;
    struct buf line;
    buf_init(&line, HEADER_LINE_MAX);
    enum err err = ERR_OK;
    for (unsigned i = 0; i < request->header_count && err == ERR_OK; i++) {
        const struct header *h = &request->headers[i];
        if (!headers_name_is_token(h->name) || !headers_value_is_clean(h->value)) {
            err = ERR_INVALID;
            break;
        }
        if (header_is_framing(h->name)) {
            continue;
        }
        has_accept |= span_equal_nocase(h->name, SPAN("Accept"));
        struct span value = span_trim(h->value);
        line.len = 0;
        buf_append_span(&line, h->name);
        // curl sends "Name;" with an empty value.
        buf_append_cstr(&line, value.len > 0 ? ": " : ";");
        buf_append_span(&line, value);
        if (buf_ok(&line)) {
            slist_add(&t->headers, buf_cstr(&line));
        } else {
            err = ERR_LIMIT;
        }
    }
    buf_done(&line);
    if (!has_accept) {
        slist_add(&t->headers, "Accept:");
    }
    CURL_SET(t->easy, CURLOPT_HTTPHEADER, t->headers);
    return err;
}

static enum err transfer_set_method(struct transfer *t, const struct transfer_request *request)
{
    char method[32];
    if (request->method.len == 0 || request->method.len >= sizeof(method) ||
        !headers_name_is_token(request->method)) {
        return ERR_INVALID;
    }
    memcpy(method, request->method.ptr, request->method.len);
    method[request->method.len] = '\0';
    bool is_put = strcmp(method, "PUT") == 0;
    // PUT and POST have a Content-Length even without a body.
    if (request->has_body || is_put || strcmp(method, "POST") == 0) {
        check(t->body_length == 0 || t->calls.on_upload != NULL);
        CURL_SET(t->easy, CURLOPT_UPLOAD, 1L);
        CURL_SET(t->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)t->body_length);
        CURL_SET(t->easy, CURLOPT_UPLOAD_BUFFERSIZE, buffer_size(t, UPLOAD_BUFFER_SIZE));
        if (!is_put) {
            CURL_SET(t->easy, CURLOPT_CUSTOMREQUEST, method);
        }
    } else if (strcmp(method, "HEAD") == 0) {
        CURL_SET(t->easy, CURLOPT_NOBODY, 1L);
    } else {
        CURL_SET(t->easy, CURLOPT_HTTPGET, 1L);
        if (strcmp(method, "GET") != 0) {
            CURL_SET(t->easy, CURLOPT_CUSTOMREQUEST, method);
        }
    }
    return ERR_OK;
}

static void transfer_set_connection(struct transfer *t, const struct transfer_request *request)
{
    const struct transfer_pool_options *options = &t->pool->options;
    CURL *easy = t->easy;
    CURL_SET(easy, CURLOPT_NOSIGNAL, 1L);
    CURL_SET(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    CURL_SET(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    CURL_SET(easy, CURLOPT_HTTP09_ALLOWED, 0L);
    CURL_SET(easy, CURLOPT_FOLLOWLOCATION, 0L);
    CURL_SET(easy, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    // Only a configured proxy is used, and only by CONNECT. A proxy that the environment names was
    // meant for other programs, and must not see requests to this machine or to the cluster.
    t->is_proxied = options->proxy != NULL && request->unix_socket == NULL &&
                    strncmp(request->url, "https://", 8) == 0;
    CURL_SET(easy, CURLOPT_NOPROXY, t->is_proxied ? "" : "*");
    CURL_SET(easy, CURLOPT_PROXY, t->is_proxied ? options->proxy : "");
    CURL_SET(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    CURL_SET(easy, CURLOPT_BUFFERSIZE,
             buffer_size(t, request->expects_long ? LONG_BUFFER_SIZE : RECEIVE_BUFFER_SIZE));
    CURL_SET(easy, CURLOPT_TCP_NODELAY, 1L);
    CURL_SET(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    // Each lane looks names up for itself and shuffles the addresses, so that the lanes together
    // use all addresses. An unreachable address costs the delay until curl tries the next one.
    // After such a failure the lane looks the name up again, which gives a new order. Otherwise the
    // next transfers would begin with the bad address too, until curl's cached look-up expires.
    CURL_SET(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    CURL_SET(easy, CURLOPT_DNS_CACHE_TIMEOUT, t->lane->must_look_up ? 0L : NAMES_KEPT_S);
    // If a transfer ends during its name look-up, curl does not join its look-up thread, which ends
    // by itself. A join would block the worker until the name server answers.
    CURL_SET(easy, CURLOPT_QUICK_EXIT, 1L);
    if (t->pool->names != NULL) {
        CURL_SET(easy, CURLOPT_RESOLVE, t->pool->names);
    }
    CURL_SET(easy, CURLOPT_CONNECTTIMEOUT_MS, (long)options->connect_timeout_ms);
    uint64_t keepalive_s = options->keepalive_ms / 1000;
    CURL_SET(easy, CURLOPT_MAXAGE_CONN, keepalive_s > 0 ? (long)keepalive_s : 1L);
    CURL_SET(easy, CURLOPT_FRESH_CONNECT, request->fresh_connection ? 1L : 0L);
    CURL_SET(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    transfer_set_authorities(t);
    if (request->unix_socket != NULL) {
        CURL_SET(easy, CURLOPT_UNIX_SOCKET_PATH, request->unix_socket);
    }
}

enum err transfer_setup(struct transfer *t, const struct transfer_request *request)
{
    if (t->body_length > INT64_MAX) {
        return ERR_INVALID;
    }
    t->held_bytes = HANDLE_BYTES;
    transfer_set_connection(t, request);
    CURL_SET(t->easy, CURLOPT_PATH_AS_IS, 1L);
    CURL_SET(t->easy, CURLOPT_URL, request->url);
    enum err err = transfer_set_method(t, request);
    return err != ERR_OK ? err : transfer_set_headers(t, request);
}

// --- Errors --------------------------------------------------------------------------------------

enum err transfer_error_from_curl(const struct transfer *t, CURLcode code)
{
    switch (code) {
    case CURLE_OK:
        return ERR_OK;
    case CURLE_COULDNT_RESOLVE_HOST:
        return ERR_ORIGIN_DNS;
    case CURLE_COULDNT_RESOLVE_PROXY:
        return ERR_ORIGIN_CONNECT;
    case CURLE_COULDNT_CONNECT:
    case CURLE_INTERFACE_FAILED:
        return t->is_out_of_reach ? ERR_PERMISSION : ERR_ORIGIN_CONNECT;
    case CURLE_SSL_CONNECT_ERROR:
        // A connection that breaks during the handshake is no evidence about certificates.
        return strstr(t->error, "reset by peer") != NULL ? ERR_ORIGIN_RESET : ERR_ORIGIN_TLS;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_ENGINE_SETFAILED:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_CLIENTCERT:
    case CURLE_USE_SSL_FAILED:
        return ERR_ORIGIN_TLS;
    case CURLE_OPERATION_TIMEDOUT:
        // We set no other time limit in curl than the connect timeout.
        return t->wait == WAIT_CONNECT ? ERR_ORIGIN_CONNECT : ERR_ORIGIN_TIMEOUT;
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_SEND_FAIL_REWIND:
        return ERR_ORIGIN_RESET;
    case CURLE_RECV_ERROR:
        if (t->is_proxied && t->wait == WAIT_CONNECT && strstr(t->error, "CONNECT") != NULL) {
            return ERR_ORIGIN_CONNECT; // the proxy has refused the tunnel
        }
        // If the chunked framing is broken, earlier chunks may be wrong too.
        return strstr(t->error, "chunk") != NULL ? ERR_ORIGIN_PROTOCOL : ERR_ORIGIN_RESET;
    // The answer does not begin with "HTTP/". On a reused connection it may be the rest of an
    // earlier reply.
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
        return transfer_reused_connection(t) ? ERR_ORIGIN_RESET : ERR_ORIGIN_PROTOCOL;
    // curl also returns this if a header line exceeds its own limit of 100 KiB.
    case CURLE_OUT_OF_MEMORY:
        return t->wait != WAIT_CONNECT && t->head != HEAD_OVER ? ERR_ORIGIN_HEAD_TOO_LARGE
                                                               : ERR_NO_MEMORY;
    case CURLE_URL_MALFORMAT:
        return ERR_INVALID;
    default:
        return ERR_ORIGIN_PROTOCOL;
    }
}
