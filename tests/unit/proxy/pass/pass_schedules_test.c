// SPDX-License-Identifier: Apache-2.0
// Proves: under random schedules, the origin gets a prefix of the right bytes. It gets the whole
// body only if all bytes were right, and the client gets one answer that is true. The client sends
// its body in pieces, lies, pauses or leaves, and the origin answers early, late, badly or never.
// For each framing of a body. seeds.h says which schedules run.
#include "proxy/doors.h"
#include "s3/s3_private.h"

#include <stdio.h>
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
    size_t given;
    uint64_t leaves_at;
    bool has_ended, is_cut, is_over, has_left;
    struct buf received;
    // the origin
    struct buf uploaded;
    bool has_all, is_aborted, has_answered;
    enum err abort_err;
    // the writes
    unsigned ready_count, ended_count;
} at;

static unsigned pick(unsigned below)
{
    at.chance = at.chance * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((at.chance >> 33) % below);
}

#define must(condition, why) cr_assert(condition, "%s: " why, doors.told)

static struct proxy_rule rules[] = {{.match = "**"}};
static struct live live = {.settings = {.rules = rules, .rule_count = 1}, .refs = 1};
static struct proxy proxy;
static struct proxy_worker pw = {.proxy = &proxy, .live = &live};
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
    at.http.framing = at.framing == HTTP_CHUNKS ? HTTP_BODY_CHUNKS : HTTP_BODY_LENGTH;
    at.http.content_length = at.framing == HTTP_CHUNKS ? 0 : at.wire.len;
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
    doors_open();
    at.seed = seed;
    at.chance = seed * 0x9e3779b97f4a7c15u + 1;
    at.framing = (enum framing)pick(FRAMINGS);
    at.flaw = pick(2) == 0 ? FLAWLESS : (enum flaw)pick(4);
    at.conduct = pick(2) == 0 ? HONEST : (enum conduct)pick(CONDUCTS);
    at.status = at.conduct == HONEST || at.conduct == EARLY_SUCCESS ? 200 : 403 + pick(2) * 100;
    at.leaves_at = UINT64_MAX;
    snprintf(doors.told, sizeof(doors.told), "seed %llu, framing %d, flaw %d, conduct %d",
             (unsigned long long)seed, (int)at.framing, (int)at.flaw, (int)at.conduct);
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
    at.r.live = &live;
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
    (void)serve_pass_step_start(&at.r);
}

// --- moves: each says whether there was something to do ------------------------------------------

static void exchange_ends(void)
{
    at.is_over = true;
    doors.sink = NULL;
    if (at.r.pass != NULL) {
        serve_pass_done(&at.r);
    }
}

static bool move_client(void)
{
    if (at.is_over || doors.sink == NULL || doors.body_paused || at.has_ended) {
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
        err = doors.sink->on_data(doors.sink, (struct span){at.wire.ptr + at.given, len});
        at.given += len;
    }
    if (err != ERR_OK || at.given == at.wire.len) {
        at.has_ended = true;
        doors.sink->on_end(doors.sink, err);
    }
    return true;
}

// Sends the reply. After it, or after an error document of ours, the exchange is over.
static bool move_reply(void)
{
    struct http_source *source = doors.reply.source;
    struct http_slice slice;
    if (at.is_over) {
        return false;
    }
    at.is_cut = at.is_cut || doors.reply_cut;
    if (at.is_cut || doors.failures > 0 || (doors.replies > 0 && source == NULL)) {
        exchange_ends();
        return true;
    }
    if (source == NULL) {
        return false;
    }
    switch (source->pull(source, &slice)) {
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
    must(doors.begun_count <= 1, "two writes");
    if (at.ready_count < doors.begun_count) {
        struct key_write *kw = doors.begun[at.ready_count++];
        kw->on_ready(kw);
    } else if (at.ended_count < doors.ending_count) {
        struct key_write *kw = doors.ending[at.ended_count++];
        kw->on_ended(kw);
    } else {
        return doors_turn();
    }
    return true;
}

static void origin_answers(unsigned status, const char *body)
{
    at.has_answered = true;
    if (doors_relay_head(status, (int64_t)strlen(body)) != ERR_OK || doors.relay_cancelled) {
        return;
    }
    if (body[0] != '\0') {
        must(doors.relay->on_body(doors.relay, span_from_cstr(body)) == ERR_OK, "body");
    }
}

static bool origin_takes(void)
{
    char bytes[40000];
    size_t len = 0;
    if (at.has_all || doors.upload_waits || at.is_aborted || doors.relay->on_upload == NULL) {
        return false;
    }
    enum err err = doors_relay_upload(bytes, 1 + pick(sizeof(bytes)), &len);
    if (err != ERR_OK && err != ERR_AGAIN) {
        at.is_aborted = true;
        at.abort_err = err;
    } else if (err == ERR_OK && len == 0) {
        at.has_all = true;
    } else if (err == ERR_OK) {
        buf_append(&at.uploaded, bytes, len);
    }
    return true;
}

static bool origin_is_whole(void)
{
    return doors.relay_starts > 0 && at.uploaded.len == doors.relay_body_length;
}

static bool move_origin(void)
{
    bool is_due = at.uploaded.len >= at.conduct_at;
    if (!doors.relay_running) {
        return false;
    }
    if (doors.relay_cancelled || at.is_aborted) {
        doors_relay_end(doors.relay_cancelled ? ERR_CANCELLED : at.abort_err);
    } else if (at.has_answered) {
        if (at.conduct == EARLY_SUCCESS && !at.has_all && origin_takes()) {
            return true;
        }
        doors_relay_end(at.conduct == EARLY && pick(2) == 0 ? ERR_ORIGIN_RESET : ERR_OK);
    } else if (at.conduct == DOWN) {
        doors_relay_end(ERR_ORIGIN_CONNECT);
    } else if (at.conduct == RESETS && is_due) {
        doors_relay_end(ERR_ORIGIN_RESET);
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

// Checks that the bytes which reached the origin, without our framing, are a prefix of the client's
// bytes. A wrong body may be sent on only so far that the origin cannot complete it.
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
    must(doors.relay_starts <= 1, "the origin is asked twice");
    must(doors.replies + doors.failures <= 1, "two answers");
    if (at.has_left) {
        return;
    }
    must(doors.replies + doors.failures == 1, "no answer");
    if (doors.replies == 1) {
        must(at.has_answered && doors.reply.status == at.status, "another status");
        must(at.status != 200 || (origin_is_whole() && !is_wrong), "a success that is none");
    }
    if (at.conduct == HONEST && !is_wrong && !(at.flaw == GARBLED && !is_bound)) {
        must(doors.replies == 1 && !at.is_cut && origin_is_whole(), "a good upload failed");
    }
}

static void run_seed(uint64_t seed)
{
    unsigned still = 0;
    begin(seed);
    for (unsigned round = 0; still < 100; round++) {
        must(round < ROUNDS_MAX, "it goes on for ever");
        still = move() ? 0 : still + 1;
        if (still == 100 && doors.relay_running && !doors.relay_cancelled) {
            doors_relay_end(ERR_ORIGIN_TIMEOUT); // it was waited for long enough
            still = 0;
        }
    }
    must(at.is_over && !doors.relay_running, "it hangs");
    judge();
    must(doors.dead_count == 1 || doors.relay_starts == 0, "its memory is kept");
    must(doors.dead_count <= 1, "freed twice");
    doors_close();
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
