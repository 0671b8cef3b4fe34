// SPDX-License-Identifier: Apache-2.0
// Proves: under random schedules of a client that sends its body in pieces, lies, pauses or leaves, and
// an origin that answers early, late, badly or never, what reaches the origin is a beginning of the
// right bytes, is whole only if all of them were right, and the client hears one thing that is true.
// For each framing of a body. seeds.h says which schedules.
#include "proxy/pass_private.h"
#include "s3/s3_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "test.h"

#define SEEDS 3000
#define ROUNDS_MAX 100000
#define DATE "20130524T000000Z"
#define SCOPE "20130524/us-east-1/s3/aws4_request"
#define SEED_SIGNATURE "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"

enum framing { HASHED, UNSIGNED, SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER, HTTP_CHUNKS, FRAMINGS };
enum flaw { FLAWLESS, WRONG_BYTE, GARBLED, LEAVES };
enum conduct { HONEST, REFUSES, EARLY, EARLY_SUCCESS, DOWN, RESETS, SILENT, CONDUCTS };

// The neighbours of serve_pass.c are the schedule's.
static struct {
    uint64_t seed, chance;
    // the plan
    enum framing framing;
    enum flaw flaw;
    enum conduct conduct;
    uint64_t conduct_at; // bytes uploaded
    unsigned status;
    struct buf payload, wire; // as signed; as sent
    size_t wrong_at;          // of the payload
    // the client
    struct arena *arena;
    struct http_request http;
    struct request r;
    struct http_sink *sink;
    size_t given;
    uint64_t leaves_at;
    bool is_paused, has_ended, is_cut, is_over, has_left;
    unsigned replies, failures;
    unsigned reply_status;
    struct http_source *source;
    struct buf received;
    // the origin
    struct origin_relay *relay;
    struct arena *relay_arena;
    struct buf uploaded;
    bool is_running, is_cancelled, is_waiting, has_all, is_aborted, has_answered, was_running;
    enum err abort_err;
    uint64_t body_length;
    // the writes
    struct key_write *beginning, *ending;
    void *to_free;
} at;

static unsigned pick(unsigned below)
{
    at.chance = at.chance * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((at.chance >> 33) % below);
}

#define must(condition, why)                                                                       \
    cr_assert(condition, "seed %llu, framing %d, flaw %d, conduct %d: " why,                       \
              (unsigned long long)at.seed, (int)at.framing, (int)at.flaw, (int)at.conduct)

// --- played doors --------------------------------------------------------------------------------

static void play_body_start(struct http_exchange *x, struct http_sink *sink)
{
    (void)x;
    at.sink = sink;
}
static void play_body_pause(struct http_exchange *x)
{
    (void)x;
    at.is_paused = true;
}
static void play_body_resume(struct http_exchange *x)
{
    (void)x;
    at.is_paused = false;
}
static void play_reply_start(struct http_exchange *x, const struct http_reply *reply)
{
    (void)x;
    at.replies++;
    at.reply_status = reply->status;
    at.source = reply->source;
}
static void play_reply_ready(struct http_exchange *x)
{
    (void)x;
}
static void play_reply_cut(struct http_exchange *x)
{
    (void)x;
    at.is_cut = true;
}
static void play_relay_start(struct worker *w, struct origin *origin, struct origin_relay *r)
{
    (void)w, (void)origin;
    must(!at.was_running, "the origin is asked twice");
    at.relay = r;
    at.is_running = at.was_running = true;
    at.body_length = r->body_length;
    at.relay_arena = arena_new(1u << 20);
}
static void play_relay_nothing(struct origin_relay *r)
{
    (void)r;
}
static void play_resume_upload(struct origin_relay *r)
{
    must(r == at.relay && at.is_waiting, "woken for nothing");
    at.is_waiting = false;
}
static void play_relay_cancel(struct origin_relay *r)
{
    must(r == at.relay && at.is_running && !at.is_cancelled, "a wrong cancel");
    at.is_cancelled = true;
}
static void play_begin(struct fill_worker *pw, struct key_write *kw)
{
    (void)pw;
    must(at.beginning == NULL, "two writes");
    at.beginning = kw;
}
static void play_end(struct fill_worker *pw, struct key_write *kw)
{
    (void)pw;
    at.ending = kw;
}
static enum step_result play_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    (void)detail;
    at.failures++;
    r->err = err;
    return STEP_DONE;
}
static void play_common_headers(struct request *r, struct headers *headers)
{
    (void)r, (void)headers;
}
static struct object_key *play_object_key(struct request *r, struct origin *origin,
                                          struct span realm, struct span bucket, struct span key,
                                          const struct proxy_rule *rule)
{
    (void)r, (void)origin, (void)rule, (void)bucket, (void)key;
    struct object_key *k = calloc(1, sizeof(*k));
    k->realm = realm;
    return k;
}
static void play_key_unref(struct object_key *k)
{
    free(k);
}
static void play_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr)
{
    (void)w, (void)fn;
    must(at.to_free == NULL, "freed twice");
    at.to_free = ptr;
}

#define http_body_start play_body_start
#define http_body_pause play_body_pause
#define http_body_resume play_body_resume
#define http_reply_start play_reply_start
#define http_reply_ready play_reply_ready
#define http_reply_cut play_reply_cut
#define origin_relay_start play_relay_start
#define origin_relay_pause play_relay_nothing
#define origin_relay_resume play_relay_nothing
#define origin_relay_resume_upload play_resume_upload
#define origin_relay_cancel play_relay_cancel
#define invalidate_begin play_begin
#define invalidate_end play_end
#define request_fail play_fail
#define request_common_headers play_common_headers
#define request_object_key_in play_object_key
#define object_key_unref play_key_unref
#define worker_free_later play_free_later
#define list_cache_find(pw, r) NULL
#define list_cache_begin(pw, r) NULL
#define list_fill_append(fill, data) ((void)(data))
#define list_fill_commit(fill, headers) ((void)(headers))
#define list_fill_abort(fill) ((void)(fill))
#define list_page_unref(page) ((void)(page))
#define list_page_body(page) ((struct span){NULL, 0})
#define list_page_headers(page) NULL
#define origin_fetch_pause(fetch) ((void)(fetch))
#define origin_fetch_resume(fetch) ((void)(fetch))
#define origin_fetch_cancel(fetch) ((void)(fetch))
#define pass_direct_wanted(r) false
#define pass_direct_start(p) ERR_OK
#define pass_state_new play_pass_state_new
#define pass_state_free play_pass_state_free
#define pass_state_copy_span play_pass_state_copy_span
#define pass_state_copy_request play_pass_state_copy_request
#define pass_state_copy_headers play_pass_state_copy_headers
#define pass_state_check play_pass_state_check
#define pass_origin_pause play_pass_origin_pause
#define pass_origin_resume play_pass_origin_resume
#define pass_origin_cancel play_pass_origin_cancel
#define pass_answer_headers play_pass_answer_headers
#define pass_answer_start play_pass_answer_start
#define pass_answer_take play_pass_answer_take
#define pass_answer_is_bodiless play_pass_answer_is_bodiless
#define pass_answer_list_end play_pass_answer_list_end
#define pass_upload_take play_pass_upload_take
#define pass_upload_wake play_pass_upload_wake
#define pass_upload_drop play_pass_upload_drop
#define pass_outcome_settle play_pass_outcome_settle
#define pass_outcome_refuse play_pass_outcome_refuse
#define pass_outcome_free_unneeded play_pass_outcome_free_unneeded
#define pass_relay_begin play_pass_relay_begin
#define pass_receive_start play_pass_receive_start
#define pass_sources_send play_pass_sources_send
#define pass_keys_of_head play_pass_keys_of_head
#define pass_keys_of_form play_pass_keys_of_form
#define pass_keys_of_body play_pass_keys_of_body
#define pass_keys_of_new_realms play_pass_keys_of_new_realms
#define pass_relay_begin_late play_pass_relay_begin_late
#define serve_pass_step_start play_pass_start
#define serve_pass_done play_pass_done
struct pass_state *pass_state_new(struct request *r);
void pass_state_free(void *ptr);
bool pass_state_copy_span(struct arena *arena, struct span *s);
bool pass_state_copy_request(struct arena *arena, const struct s3_request *from,
                             struct s3_request *ret_to);
bool pass_state_copy_headers(struct arena *arena, const struct headers *from, struct headers *to);
void pass_state_check(const struct pass_state *p);
void pass_origin_pause(struct pass_state *p);
void pass_origin_resume(struct pass_state *p);
void pass_origin_cancel(struct pass_state *p);
void pass_answer_headers(struct pass_state *p);
void pass_answer_start(struct pass_state *p);
void pass_answer_take(struct pass_state *p, struct span data);
bool pass_answer_is_bodiless(const struct pass_state *p);
void pass_answer_list_end(struct pass_state *p, bool is_good);
enum err pass_upload_take(struct pass_state *p, char *buf, size_t max, size_t *ret_len) MUST_USE;
void pass_upload_wake(struct pass_state *p);
void pass_upload_drop(struct pass_state *p);
void pass_outcome_settle(struct pass_state *p);
void pass_outcome_refuse(struct pass_state *p, enum err err, struct span message);
void pass_outcome_free_unneeded(struct pass_state *p);
void pass_relay_begin(struct pass_state *p);
void pass_relay_begin_late(struct pass_state *p);
void pass_keys_of_new_realms(struct pass_state *p);
void pass_receive_start(struct pass_state *p);
enum err pass_sources_send(struct pass_state *p, struct span *ret_message) MUST_USE;
#include "../../../src/proxy/pass_answer.c"
#include "../../../src/proxy/pass_keys.c"
#include "../../../src/proxy/pass_origin.c"
#include "../../../src/proxy/pass_outcome.c"
#include "../../../src/proxy/pass_receive.c"
#include "../../../src/proxy/pass_relay.c"
#include "../../../src/proxy/pass_sources.c"
#include "../../../src/proxy/pass_state.c"
#include "../../../src/proxy/pass_upload.c"
#include "../../../src/proxy/serve_pass.c"

static struct proxy_rule rules[] = {{.match = "**"}};
static struct proxy proxy = {.rules = rules, .options.rule_count = 1};
static struct proxy_worker pw = {.proxy = &proxy};
static int an_origin;

// --- bodies as clients frame them ----------------------------------------------------------------

static uint8_t signing_key[32];

static void sign(struct buf *line, const char *algorithm, const char *middle, struct span data,
                 char *previous)
{
    uint8_t mac[32];
    char hash[65];
    sigv4_sha256_hex(data, hash);
    line->len = 0;
    buf_printf(line, "%s\n%s\n%s\n%s\n%s%s", algorithm, DATE, SCOPE, previous, middle, hash);
    sigv4_hmac_sha256(signing_key, sizeof(signing_key), buf_span(line), mac);
    hex_encode(mac, sizeof(mac), previous);
}

static void put_chunk(struct buf *line, struct span data, char *previous)
{
    if (at.framing == UNSIGNED_TRAILER) {
        buf_printf(&at.wire, "%zx\r\n", data.len);
    } else {
        sign(line, "AWS4-HMAC-SHA256-PAYLOAD", SIGV4_EMPTY_SHA256 "\n", data, previous);
        buf_printf(&at.wire, "%zx;chunk-signature=%s\r\n", data.len, previous);
    }
    buf_append_span(&at.wire, data);
    if (data.len > 0) {
        buf_append_cstr(&at.wire, "\r\n");
    }
}

static void put_trailer(struct buf *line, char *previous)
{
    char value[64], text[128];
    struct s3_checksum_state *sum = s3_checksum_new(S3_CHECKSUM_CRC32);
    s3_checksum_update(sum, buf_span(&at.payload));
    s3_checksum_final(sum, value);
    s3_checksum_free(sum);
    snprintf(text, sizeof(text), "x-amz-checksum-crc32:%s\n", value);
    buf_printf(&at.wire, "x-amz-checksum-crc32:%s\r\n", value);
    if (at.framing == SIGNED_TRAILER) {
        sign(line, "AWS4-HMAC-SHA256-TRAILER", "", span_from_cstr(text), previous);
        buf_printf(&at.wire, "x-amz-trailer-signature:%s\r\n", previous);
    }
}

static void frame(void)
{
    char previous[65] = SEED_SIGNATURE;
    struct buf line;
    bool is_framed = at.framing >= SIGNED && at.framing <= UNSIGNED_TRAILER;
    if (!is_framed) {
        buf_append_span(&at.wire, buf_span(&at.payload));
        return;
    }
    buf_init(&line, 4096);
    for (size_t done = 0; done < at.payload.len;) {
        size_t len = min_u64(8192 + pick(60000), at.payload.len - done);
        put_chunk(&line, (struct span){at.payload.ptr + done, len}, previous);
        done += len;
    }
    put_chunk(&line, (struct span){NULL, 0}, previous);
    if (at.framing != SIGNED) {
        put_trailer(&line, previous);
    }
    buf_append_cstr(&at.wire, "\r\n");
    buf_done(&line);
}

static void spoil(void)
{
    if (at.flaw == WRONG_BYTE) {
        // In the payload of the first chunk, or of the plain body.
        struct span wire = buf_span(&at.wire);
        size_t head = at.wire.len == at.payload.len ? 0 : span_find(wire, '\n') + 1;
        at.wrong_at = pick((unsigned)min_u64(at.payload.len, 8000));
        at.wire.ptr[head + at.wrong_at] ^= 1;
    } else if (at.flaw == GARBLED) {
        at.wire.ptr[0] ^= 0x40; // no digit of a chunk's size
    } else if (at.flaw == LEAVES) {
        at.leaves_at = pick((unsigned)at.wire.len);
    }
}

// --- the request ---------------------------------------------------------------------------------

static void header(const char *name, const char *value)
{
    struct span copy = arena_copy(at.arena, span_from_cstr(value));
    cr_assert(headers_add(&at.http.headers, at.arena, span_from_cstr(name), copy));
}

static void describe(void)
{
    static const char *const words[] = {[SIGNED] = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
                                        [SIGNED_TRAILER] =
                                            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
                                        [UNSIGNED_TRAILER] = "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                                        [UNSIGNED] = "UNSIGNED-PAYLOAD",
                                        [HTTP_CHUNKS] = "UNSIGNED-PAYLOAD"};
    char text[80];
    at.http.chunked = at.framing == HTTP_CHUNKS;
    at.http.has_body = true;
    at.http.has_content_length = !at.http.chunked;
    at.http.content_length = at.http.chunked ? 0 : at.wire.len;
    sigv4_sha256_hex(buf_span(&at.payload), text);
    header("x-amz-content-sha256", at.framing == HASHED ? text : words[at.framing]);
    if (at.framing >= SIGNED && at.framing <= UNSIGNED_TRAILER) {
        snprintf(text, sizeof(text), "%zu", at.payload.len);
        header("x-amz-decoded-content-length", text);
        header("Content-Encoding", "aws-chunked");
    }
    if (at.framing == SIGNED_TRAILER || at.framing == UNSIGNED_TRAILER) {
        header("x-amz-trailer", "x-amz-checksum-crc32");
    }
}

static void begin(uint64_t seed)
{
    static struct s3_domains domains;
    memset(&at, 0, sizeof(at));
    at.seed = seed;
    at.chance = seed * 0x9e3779b97f4a7c15u + 1;
    at.framing = (enum framing)pick(FRAMINGS);
    at.flaw = pick(2) == 0 ? FLAWLESS : (enum flaw)pick(4);
    at.conduct = pick(2) == 0 ? HONEST : (enum conduct)pick(CONDUCTS);
    at.status = at.conduct == HONEST || at.conduct == EARLY_SUCCESS ? 200 : 403 + pick(2) * 100;
    at.leaves_at = UINT64_MAX;
    at.arena = arena_new(1u << 20);
    chunk_budget_init(64u << 20);
    buf_init(&at.payload, 4u << 20);
    buf_init(&at.wire, 4u << 20);
    buf_init(&at.uploaded, 4u << 20);
    buf_init(&at.received, 4u << 20);
    memset(signing_key, 7, sizeof(signing_key));
    size_t len = 1 + pick(pick(8) == 0 ? 600000 : 3000);
    for (size_t i = 0; i < len; i++) {
        buf_append_char(&at.payload, (char)(i * 31 + i / 251 + seed));
    }
    frame();
    cr_assert(buf_ok(&at.wire));
    spoil();
    at.conduct_at = pick((unsigned)at.wire.len);
    proxy.options.default_origin = (struct origin *)(void *)&an_origin;
    at.http.method = SPAN("PUT");
    at.http.target = pick(3) == 0 ? SPAN("/b/k?partNumber=1&uploadId=u") : SPAN("/b/k");
    at.r.http = &at.http;
    at.r.arena = at.arena;
    at.r.pw = &pw;
    at.r.rule = &rules[0];
    at.r.origin = proxy.options.default_origin;
    at.r.principal.verified = true;
    at.r.principal.claim.scope = SPAN(SCOPE);
    at.r.principal.claim.signature = SPAN(SEED_SIGNATURE);
    snprintf(at.r.principal.claim.amz_date, sizeof(at.r.principal.claim.amz_date), "%s", DATE);
    memcpy(at.r.principal.signing_key, signing_key, sizeof(signing_key));
    describe();
    cr_assert_eq(s3_request_parse(at.arena, at.http.method, SPAN("127.0.0.1"), at.http.target,
                                  &at.http.headers, &domains, &at.r.s3),
                 ERR_OK);
    at.r.origin_bucket = at.r.s3.bucket;
    cr_assert_eq(
        s3_effects_find(at.arena, &at.r.s3, &at.http.headers, at.r.origin_bucket, &at.r.effects),
        ERR_OK);
    (void)play_pass_start(&at.r);
}

// --- moves: each says whether there was something to do ------------------------------------------

static void exchange_ends(void)
{
    at.is_over = true;
    at.sink = NULL;
    if (at.r.pass != NULL) {
        play_pass_done(&at.r);
    }
}

static bool move_client(void)
{
    if (at.is_over || at.sink == NULL || at.is_paused || at.has_ended) {
        return false;
    }
    if (at.given >= at.leaves_at) {
        at.has_left = true;
        exchange_ends();
        return true;
    }
    enum err err = ERR_OK;
    size_t len = min_u64(1 + pick(pick(2) == 0 ? 65536 : 300), at.wire.len - at.given);
    if (len > 0) {
        err = at.sink->on_data(at.sink, (struct span){at.wire.ptr + at.given, len});
        at.given += len;
    }
    if (err != ERR_OK || at.given == at.wire.len) {
        at.has_ended = true;
        at.sink->on_end(at.sink, err);
    }
    return true;
}

// The reply goes out; when it is through, or was an error document of ours, the exchange is over.
static bool move_reply(void)
{
    struct http_slice slice;
    if (at.is_over) {
        return false;
    }
    if (at.is_cut || at.failures > 0 || (at.replies > 0 && at.source == NULL)) {
        exchange_ends();
        return true;
    }
    if (at.source == NULL) {
        return false;
    }
    switch (at.source->pull(at.source, &slice)) {
    case HTTP_PULL_SLICE:
        buf_append_span(&at.received, slice.bytes);
        slice.release(slice.release_ctx);
        return true;
    case HTTP_PULL_WAIT:
        return false;
    case HTTP_PULL_CUT:
        at.is_cut = true;
        exchange_ends();
        return true;
    default:
        exchange_ends();
        return true;
    }
}

static bool move_writes(void)
{
    struct key_write *kw = at.beginning != NULL ? at.beginning : at.ending;
    if (kw == NULL) {
        return false;
    }
    if (at.beginning != NULL) {
        at.beginning = NULL;
        kw->on_ready(kw);
    } else {
        at.ending = NULL;
        kw->on_ended(kw);
    }
    return true;
}

static void origin_ends(enum err err)
{
    at.is_running = false;
    at.relay->on_end(at.relay, err);
    arena_free(at.relay_arena);
    at.relay_arena = NULL;
}

static void origin_answers(unsigned status, const char *body)
{
    at.has_answered = true;
    at.relay->status = status;
    at.relay->has_length = true;
    at.relay->length = strlen(body);
    at.relay->arena = at.relay_arena;
    if (at.relay->on_head(at.relay) != ERR_OK || at.is_cancelled) {
        return;
    }
    if (body[0] != '\0') {
        must(at.relay->on_body(at.relay, span_from_cstr(body)) == ERR_OK, "body");
    }
}

static bool origin_takes(void)
{
    char bytes[40000];
    size_t len = 0;
    if (at.has_all || at.is_waiting || at.is_aborted || at.relay->on_upload == NULL) {
        return false;
    }
    enum err err = at.relay->on_upload(at.relay, bytes, 1 + pick(sizeof(bytes)), &len);
    if (err == ERR_AGAIN) {
        at.is_waiting = true;
    } else if (err != ERR_OK) {
        at.is_aborted = true;
        at.abort_err = err;
    } else if (len == 0) {
        at.has_all = true;
    } else {
        buf_append(&at.uploaded, bytes, len);
    }
    return true;
}

static bool origin_is_whole(void)
{
    return at.was_running && at.uploaded.len == at.body_length;
}

static bool move_origin(void)
{
    bool is_due = at.uploaded.len >= at.conduct_at;
    if (!at.is_running) {
        return false;
    }
    if (at.is_cancelled || at.is_aborted) {
        origin_ends(at.is_cancelled ? ERR_CANCELLED : at.abort_err);
    } else if (at.has_answered) {
        if (at.conduct == EARLY_SUCCESS && !at.has_all && origin_takes()) {
            return true;
        }
        origin_ends(at.conduct == EARLY && pick(2) == 0 ? ERR_ORIGIN_RESET : ERR_OK);
    } else if (at.conduct == DOWN) {
        origin_ends(ERR_ORIGIN_CONNECT);
    } else if (at.conduct == RESETS && is_due) {
        origin_ends(ERR_ORIGIN_RESET);
    } else if ((at.conduct == EARLY || at.conduct == EARLY_SUCCESS) && is_due) {
        origin_answers(at.status, at.status == 200 ? "" : "<Error/>");
    } else if (origin_takes()) {
        return true;
    } else if (at.has_all && at.conduct != SILENT) {
        must(origin_is_whole() || at.has_answered, "the upload ends too early");
        origin_answers(at.status, at.status == 200 ? "" : "<Error/>");
    } else {
        return false;
    }
    return true;
}

static bool move(void)
{
    switch (pick(5)) {
    case 0:
        return move_client();
    case 1:
        return move_reply();
    case 2:
        return move_writes();
    default:
        return move_origin();
    }
}

// --- the judge -----------------------------------------------------------------------------------

static enum err on_decoded(void *ctx, struct span data)
{
    buf_append_span(ctx, data);
    return ERR_OK;
}

// What reached the origin, without a framing of ours: a beginning of what was sent. What is wrong in it
// may go as far as the origin cannot complete it.
static void judge_upload(void)
{
    struct span have = buf_span(&at.uploaded), want = buf_span(&at.wire);
    struct buf decoded;
    buf_init(&decoded, 4u << 20);
    if (at.framing == SIGNED_TRAILER) {
        struct aws_chunked_options options = {.has_trailer = true};
        struct aws_chunked_decoder *d = aws_chunked_decoder_new(&options);
        must(aws_chunked_decode(d, have, on_decoded, &decoded) == ERR_OK, "bad framing");
        must(!origin_is_whole() || aws_chunked_finished(d), "an unfinished framing");
        aws_chunked_decoder_free(d);
        have = buf_span(&decoded);
    }
    if (at.framing == SIGNED || at.framing == SIGNED_TRAILER) {
        at.payload.ptr[at.wrong_at] ^= at.flaw == WRONG_BYTE;
        want = buf_span(&at.payload);
    }
    must(have.len <= want.len, "more than there is");
    must(have.len == 0 || memcmp(have.ptr, want.ptr, have.len) == 0, "other bytes");
    buf_done(&decoded);
}

static void judge(void)
{
    bool is_bound = at.framing == HASHED || at.framing == SIGNED || at.framing == SIGNED_TRAILER;
    bool is_framed = at.framing == SIGNED || at.framing == SIGNED_TRAILER;
    bool is_wrong = (at.flaw == WRONG_BYTE && is_bound) || (at.flaw == GARBLED && is_framed) ||
                    (at.flaw == GARBLED && at.framing == HASHED);
    judge_upload();
    must(!origin_is_whole() || (!is_wrong && !at.has_left), "a refused body became whole");
    must(at.replies + at.failures <= 1, "two answers");
    if (at.has_left) {
        return;
    }
    must(at.replies + at.failures == 1, "no answer");
    if (at.replies == 1) {
        must(at.has_answered && at.reply_status == at.status, "another status");
        must(at.status != 200 || (origin_is_whole() && !is_wrong), "a success that is none");
    }
    if (at.conduct == HONEST && !is_wrong && !(at.flaw == GARBLED && !is_bound)) {
        must(at.replies == 1 && !at.is_cut && origin_is_whole(), "a good upload failed");
    }
}

static void run_seed(uint64_t seed)
{
    unsigned still = 0;
    begin(seed);
    for (unsigned round = 0; still < 100; round++) {
        must(round < ROUNDS_MAX, "it goes on for ever");
        still = move() ? 0 : still + 1;
        if (still == 100 && at.is_running && !at.is_cancelled) {
            origin_ends(ERR_ORIGIN_TIMEOUT); // it was waited for long enough
            still = 0;
        }
    }
    must(at.is_over && !at.is_running, "it hangs");
    judge();
    must(at.to_free != NULL || !at.was_running, "its memory is kept");
    if (at.to_free != NULL) {
        pass_state_free(at.to_free);
    }
    must(chunk_budget_used_bytes() == 0, "buffers are kept");
    buf_done(&at.payload);
    buf_done(&at.wire);
    buf_done(&at.uploaded);
    buf_done(&at.received);
    arena_free(at.arena);
}

Test(pass_schedules, only_right_bodies_become_whole, .timeout = 0)
{
    struct seeds seeds = seeds_wanted(SEEDS);
    for (uint64_t seed = seeds.first; seed <= seeds.last; seed++) {
        run_seed(seed);
    }
}
