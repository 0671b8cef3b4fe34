// SPDX-License-Identifier: Apache-2.0
// Proves: pass-through in every order that matters. The origin is asked after the first
// invalidation, and the client is answered after the second one. A wrong body never becomes whole
// at the origin. The write is closed even if client or origin leave.
#include "proxy/ask.h"

#include "test.h"

// A read is sent at once, invalidates nothing, and is streamed as the origin sends it.
Test(serve_pass, read)
{
    ask_init("GET", "/b/k?acl");
    ask_start();
    cr_assert_eq(doors.begun_count, 0);
    cr_assert(doors.relay_running);
    cr_assert_null(doors.relay->on_upload);
    ask_origin_head(200, 5);
    cr_assert_eq(doors.replies, 1);
    cr_assert_eq(doors.reply.status, 200);
    cr_assert(ask_reply_has("etag"));
    cr_assert(!ask_reply_has("server"));
    ask_origin_body("he");
    cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
    ask_origin_body("llo");
    doors_relay_end(ERR_OK);
    cr_assert_eq(ask_reads(), HTTP_PULL_END);
    cr_assert(span_equal_cstr(buf_span(&ask.received), "hello"));
    ask_finish();
}

// A body that breaks off is never ended cleanly.
Test(serve_pass, read_broken)
{
    ask_init("GET", "/b/k?acl");
    ask_start();
    ask_origin_head(200, -1);
    ask_origin_body("he");
    doors_relay_end(ERR_ORIGIN_RESET);
    cr_assert_eq(ask_reads(), HTTP_PULL_CUT);
    ask_finish();
}

// Failures before the head become S3 errors. The origin's Retry-After reaches the client.
Test(serve_pass, read_failures)
{
    ask_init("GET", "/b/k?acl");
    ask_start();
    doors_relay_end(ERR_ORIGIN_CONNECT);
    cr_assert_eq(doors.fail_err, ERR_ORIGIN_CONNECT);
    ask_finish();

    ask_init("GET", "/b/k?acl");
    ask_start();
    doors.relay->retry_after = SPAN("7");
    doors_relay_end(ERR_ORIGIN_SLOWDOWN);
    cr_assert_eq(doors.fail_err, ERR_ORIGIN_SLOWDOWN);
    cr_assert(span_equal_cstr(doors.fail_detail.retry_after, "7"));
    ask_finish();
}

// The origin is not asked before the old record is removed. The client gets no answer before the
// second invalidation.
Test(serve_pass, write_order)
{
    ask_init("PUT", "/b/k");
    ask_header("x-amz-content-sha256",
               "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    ask_body_of(5);
    ask_start();
    cr_assert_eq(doors.begun_count, 1);
    cr_assert(span_equal_cstr(doors.begun[0]->key->key, "k"));
    cr_assert(!doors.relay_running);
    ask_give("hello"); // arrives before the origin may be asked
    ask_give_end();
    ask_all_ready();
    cr_assert(doors.relay_running);
    cr_assert_eq(doors.relay->body, ORIGIN_BODY_HASH);
    cr_assert_eq(ask_upload(), ERR_OK);
    cr_assert(span_equal_cstr(buf_span(&ask.uploaded), "hello"));
    ask_origin_head(200, 0);
    cr_assert_eq(doors.ending_count, 1);
    doors_relay_end(ERR_OK);
    cr_assert_eq(doors.replies, 0);
    ask_all_ended();
    cr_assert_eq(doors.replies, 1);
    cr_assert_eq(doors.reply.status, 200);
    cr_assert(!doors.reply.close);
    ask_finish();
    cr_assert_eq(doors.ending_count, 1);
}

static void write_up_to_its_answer(void)
{
    ask_all_ready();
    cr_assert(doors.relay_running);
    ask_origin_head(204, 0);
    doors_relay_end(ERR_OK);
    ask_all_ended();
    cr_assert_eq(doors.replies, 1);
    cr_assert_eq(doors.reply.status, 204);
}

// The first write to a bucket waits until the store has noted it.
Test(serve_pass, write_is_noted_first)
{
    ask_init("DELETE", "/b/k");
    doors.is_unnoted = true;
    ask_start();
    cr_assert_eq(doors.begun_count, 0);
    doors.is_unnoted = false;
    doors.note->done(doors.note);
    cr_assert_eq(doors.begun_count, 1);
    cr_assert_null(doors.timer);
    write_up_to_its_answer();
    ask_finish();
}

// The wait times out, so a stalled disk delays no write for ever. The memory that the disk
// operation uses stays until the operation ends.
Test(serve_pass, write_is_noted_late)
{
    ask_init("DELETE", "/b/k");
    doors.is_unnoted = true;
    ask_start();
    doors.timer->fn(doors.timer);
    cr_assert_eq(doors.begun_count, 1);
    write_up_to_its_answer();
    ask_exchange_ends();
    cr_assert_eq(doors.dead_count, 0);
    doors.note->done(doors.note);
    cr_assert_eq(doors.begun_count, 1);
    cr_assert_eq(doors.dead_count, 1);
    ask_finish();
}

// A reload moves the bucket during the write. The client gets its answer when that is noted, or
// when the disk has had its time.
Test(serve_pass, answer_waits_for_the_note_of_a_move_during_the_write)
{
    for (unsigned is_late = 0; is_late < 2; is_late++) {
        ask_init("DELETE", "/b/k");
        ask_start();
        cr_assert_null(doors.note);
        ask_all_ready();
        doors.is_unnoted = true;
        ask_origin_head(204, 0);
        doors_relay_end(ERR_OK);
        ask_all_ended();
        cr_assert(doors.note != NULL && doors.replies == 0);
        if (is_late) {
            doors.timer->fn(doors.timer);
        } else {
            doors.note->done(doors.note);
        }
        cr_assert_eq(doors.replies, 1);
        cr_assert_eq(doors.reply.status, 204);
        ask_exchange_ends();
        if (is_late) {
            cr_assert_eq(doors.dead_count, 0);
            doors.note->done(doors.note);
        }
        cr_assert_eq(doors.dead_count, 1);
        ask_finish();
    }
}

// If the disk already keeps another note waiting, the write asks for none and waits for nothing.
Test(serve_pass, write_waits_for_no_note_of_a_hanging_disk)
{
    ask_init("DELETE", "/b/k");
    doors.is_unnoted = doors.notes_hang = true;
    ask_start();
    cr_assert_null(doors.note);
    cr_assert_eq(doors.begun_count, 1);
    write_up_to_its_answer();
    ask_finish();
}

// Nothing more than a refused write's first bytes reaches the origin, and the client gets S3's
// error.
Test(serve_pass, write_wrong_hash)
{
    ask_init("PUT", "/b/k");
    ask_header("x-amz-content-sha256",
               "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    ask_body_of(5);
    ask_start();
    ask_all_ready();
    ask_give("jello");
    cr_assert_eq(ask_upload(), ERR_AGAIN);
    cr_assert_eq(ask.uploaded.len, 4);
    ask_give_end();
    cr_assert(doors.relay_cancelled);
    cr_assert_eq(ask_upload(), ERR_CONTENT_SHA256_MISMATCH);
    cr_assert_eq(doors.failures, 0);
    doors_relay_end(ERR_CANCELLED);
    cr_assert_eq(doors.ending_count, 1);
    ask_all_ended();
    cr_assert_eq(doors.failures, 1);
    cr_assert_eq(doors.fail_err, ERR_CONTENT_SHA256_MISMATCH);
    ask_finish();
}

// A write that fails before its invalidation has ended never asks the origin, and leaves no key
// open.
Test(serve_pass, write_refused_early)
{
    ask_init("PUT", "/b/k");
    ask_body_of(5);
    ask_start();
    doors.sink->on_end(doors.sink, ERR_INCOMPLETE_BODY);
    cr_assert_eq(doors.failures, 0);
    ask_all_ready();
    cr_assert(!doors.relay_running);
    cr_assert_eq(doors.ending_count, 0);
    cr_assert_eq(doors.open_count, 0);
    ask_all_ended();
    cr_assert_eq(doors.fail_err, ERR_INCOMPLETE_BODY);
    ask_finish();
}

// Every outcome closes the write: an error of the origin, a lost connection, a timeout.
Test(serve_pass, write_failures)
{
    ask_init("DELETE", "/b/k");
    ask_start();
    ask_all_ready();
    doors_relay_end(ERR_ORIGIN_TIMEOUT);
    cr_assert_eq(doors.ending_count, 1);
    cr_assert_eq(doors.failures, 0);
    ask_all_ended();
    cr_assert_eq(doors.fail_err, ERR_ORIGIN_TIMEOUT);
    ask_finish();

    ask_init("DELETE", "/b/k");
    ask_start();
    ask_all_ready();
    ask_origin_head(403, 3);
    ask_origin_body("<E>");
    doors_relay_end(ERR_OK);
    cr_assert_eq(doors.replies, 0);
    ask_all_ended();
    cr_assert_eq(doors.reply.status, 403);
    cr_assert_eq(ask_reads(), HTTP_PULL_END);
    cr_assert(span_equal_cstr(buf_span(&ask.received), "<E>"));
    ask_finish();
}

// A client that leaves in mid-body: the upload is cut and the write closed once the origin is
// through.
Test(serve_pass, client_leaves_in_body)
{
    ask_init("PUT", "/b/k");
    ask_body_of(5);
    ask_start();
    ask_all_ready();
    ask_give("he");
    (void)ask_upload();
    ask_exchange_ends();
    cr_assert(doors.relay_cancelled);
    cr_assert_eq(doors.ending_count, 0);
    doors_relay_end(ERR_CANCELLED);
    cr_assert_eq(doors.ending_count, 1);
    cr_assert_eq(doors.dead_count, 0);
    ask_all_ended();
    cr_assert_eq(doors.dead_count, 1);
    ask_finish();
}

// A client leaves when the origin has the whole body: the write runs to its end without a pause,
// and is closed.
Test(serve_pass, client_leaves_after_body)
{
    ask_init("DELETE", "/b/k");
    ask_start();
    ask_all_ready();
    ask_exchange_ends();
    cr_assert(!doors.relay_cancelled);
    ask_origin_head(204, 0);
    cr_assert_eq(doors.ending_count, 1);
    doors_relay_end(ERR_OK);
    ask_all_ended();
    cr_assert_eq(doors.dead_count, 1);
    ask_finish();
}

// A client leaves while the invalidation is in flight: the origin is not asked, and no key stays
// open.
Test(serve_pass, client_leaves_before_relay)
{
    ask_init("DELETE", "/b/k");
    ask_start();
    ask_exchange_ends();
    cr_assert_eq(doors.dead_count, 0);
    ask_all_ready();
    cr_assert(!doors.relay_running);
    cr_assert_eq(doors.ending_count, 0);
    cr_assert_eq(doors.open_count, 0);
    ask_all_ended();
    cr_assert_eq(doors.dead_count, 1);
    ask_finish();
}

// A 200 that may still turn into an error is relayed as it arrives. Its last byte waits for the
// invalidation.
Test(serve_pass, early_200)
{
    ask_init("POST", "/b/k?uploadId=1");
    ask_body_of(3);
    ask_start();
    ask_all_ready();
    ask_give("<C>");
    ask_give_end();
    cr_assert_eq(ask_upload(), ERR_OK);
    ask_origin_head(200, -1);
    cr_assert_eq(doors.replies, 1);
    ask_origin_body(" ");
    cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
    ask_origin_body("  ");
    cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
    cr_assert(span_equal_cstr(buf_span(&ask.received), "  "));
    cr_assert_eq(doors.ending_count, 0);
    ask_origin_body("<Error/>");
    doors_relay_end(ERR_OK);
    cr_assert_eq(doors.ending_count, 1);
    cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
    cr_assert(span_equal_cstr(buf_span(&ask.received), "   <Error/"));
    ask_all_ended();
    cr_assert_eq(ask_reads(), HTTP_PULL_END);
    cr_assert(span_equal_cstr(buf_span(&ask.received), "   <Error/>"));
    ask_finish();
}

// An answer before the end of the body ends the upload and the connection.
Test(serve_pass, early_answer)
{
    ask_init("PUT", "/b/k?partNumber=1&uploadId=u");
    ask_body_of(100);
    ask_start();
    cr_assert_eq(doors.begun_count, 0); // a part changes no object
    ask_give("some");
    (void)ask_upload();
    ask_origin_head(403, 1);
    cr_assert(doors.reply.close);
    cr_assert_eq(doors.sink->on_data(doors.sink, SPAN("more")), ERR_CANCELLED);
    cr_assert_eq(ask_upload(), ERR_OK);
    cr_assert_eq(ask.uploaded.len, 4);
    ask_origin_body("e");
    doors_relay_end(ERR_ORIGIN_RESET); // the origin closed; its answer is whole
    cr_assert_eq(ask_reads(), HTTP_PULL_END);
    ask_finish();
}

// A form with a signed policy is sent without our signature, for the origin to judge. Where clients
// sign with our keys, it is refused.
Test(serve_pass, signed_form)
{
    static const char form[] = "--B\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nk\r\n"
                               "--B\r\nContent-Disposition: form-data; name=\"policy\"\r\n\r\n"
                               "e30=\r\n--B\r\nContent-Disposition: form-data; name=\"file\"; "
                               "filename=\"f\"\r\n\r\nbytes\r\n--B--\r\n";
    for (int verified = 0; verified < 2; verified++) {
        ask_init("POST", "/b");
        ask.r.principal.verified = verified != 0;
        ask_header("Content-Type", "multipart/form-data; boundary=B");
        ask_body_of(sizeof(form) - 1);
        ask_start();
        ask_give(form);
        if (verified != 0) {
            cr_assert_eq(doors.fail_err, ERR_INVALID_ARGUMENT);
            cr_assert_eq(doors.begun_count, 0);
            ask_finish();
            continue;
        }
        cr_assert_eq(doors.begun_count, 1);
        ask_give_end();
        ask_all_ready();
        cr_assert(doors.relay->is_unsigned);
        cr_assert_eq(ask_upload(), ERR_OK);
        cr_assert(span_equal_cstr(buf_span(&ask.uploaded), form));
        ask_origin_head(204, 0);
        doors_relay_end(ERR_OK);
        ask_all_ended();
        cr_assert_eq(doors.reply.status, 204);
        ask_finish();
    }
}

static const char *md5_of(const char *text)
{
    static char base64[64];
    struct s3_checksum_state *state = s3_checksum_new(S3_CHECKSUM_MD5);
    s3_checksum_update(state, span_from_cstr(text));
    s3_checksum_final(state, base64);
    s3_checksum_free(state);
    return base64;
}

// Every key of a batch is invalidated, with its entities decoded, before the origin gets the batch.
// The relayed document is rendered from the parsed one, under digests of its own.
Test(serve_pass, batch_delete)
{
    static const char sent[] =
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a&amp;b</Key>"
        "</Object><Object><Key>c</Key></Object></Delete>";
    static const char body[] = "<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key>"
                               "</Object></Delete>";
    ask_init("POST", "/b?delete");
    ask_body_of(sizeof(body) - 1);
    ask_start();
    ask_give(body);
    cr_assert_eq(doors.begun_count, 0);
    ask_give_end();
    cr_assert_eq(doors.begun_count, 2);
    cr_assert(span_equal_cstr(doors.begun[0]->key->key, "a&b"));
    cr_assert(span_equal_cstr(doors.begun[1]->key->key, "c"));
    doors.begun[doors.ready_count]->on_ready(doors.begun[doors.ready_count]);
    doors.ready_count++;
    (void)doors_turn();
    cr_assert(!doors.relay_running);
    ask_all_ready();
    cr_assert(doors.relay_running);
    cr_assert_eq(ask_upload(), ERR_OK);
    cr_assert(span_equal_cstr(buf_span(&ask.uploaded), sent));
    struct span md5;
    cr_assert(headers_get(doors.relay->headers, SPAN("content-md5"), &md5));
    cr_assert(span_equal_cstr(md5, md5_of(sent)), "%.*s", (int)md5.len, md5.ptr);
    ask_origin_head(200, 4);
    ask_origin_body("<ok>");
    doors_relay_end(ERR_OK);
    cr_assert_eq(doors.ending_count, 2);
    cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
    ask_all_ended();
    cr_assert_eq(ask_reads(), HTTP_PULL_END);
    ask_finish();

    ask_init("POST", "/b?delete");
    ask_header("content-md5", md5_of(body));
    ask_header("x-amz-checksum-crc32", "8QJryg==");
    ask_header("x-amz-sdk-checksum-algorithm", "CRC32");
    ask_header("x-amz-checksum-xxhash64", "AAAAAAAAAAA=");
    ask_body_of(sizeof(body) - 1);
    ask_start();
    ask_give(body);
    ask_give_end();
    ask_all_ready();
    cr_assert_eq(headers_count(doors.relay->headers, SPAN("content-md5")), 1);
    cr_assert(headers_get(doors.relay->headers, SPAN("content-md5"), &md5));
    cr_assert(span_equal_cstr(md5, md5_of(sent)));
    cr_assert(headers_get(doors.relay->headers, SPAN("x-amz-checksum-crc32"), &md5));
    cr_assert(span_equal_cstr(md5, "wWu3Hw=="), "%.*s", (int)md5.len, md5.ptr);
    cr_assert_eq(headers_count(doors.relay->headers, SPAN("x-amz-sdk-checksum-algorithm")), 1);
    cr_assert_eq(headers_count(doors.relay->headers, SPAN("x-amz-checksum-xxhash64")), 0);
    ask_origin_head(200, 0);
    doors_relay_end(ERR_OK);
    ask_all_ended();
    ask_finish();

    static const struct {
        const char *name, *value;
        enum err err;
    } digests[] = {{"Content-MD5", "client's own", ERR_INVALID_DIGEST},
                   {"Content-MD5", "E1RLOqMr77FCET3kXHJ9Xx==", ERR_BAD_DIGEST},
                   {"x-amz-checksum-crc32", "AAAAAA==", ERR_BAD_DIGEST}};
    for (size_t i = 0; i < ARRAY_LEN(digests); i++) {
        ask_init("POST", "/b?delete");
        ask_header(digests[i].name, digests[i].value);
        ask_body_of(sizeof(body) - 1);
        ask_start();
        ask_give(body);
        ask_give_end();
        cr_assert_eq(doors.fail_err, digests[i].err);
        cr_assert_eq(doors.begun_count, 0);
        ask_finish();
    }

    ask_init("POST", "/b?delete");
    ask_body_of(8);
    ask_start();
    ask_give("<Delete>");
    ask_give_end();
    cr_assert_eq(doors.fail_err, ERR_MALFORMED_XML);
    cr_assert_eq(doors.begun_count, 0);
    ask_finish();
}

enum { BATCH = 1000 };

static void ask_for_batch(void)
{
    struct buf body;
    buf_init(&body, 1u << 20);
    buf_append_cstr(&body, "<Delete>");
    for (unsigned i = 0; i < BATCH; i++) {
        buf_printf(&body, "<Object><Key>k%u</Key></Object>", i);
    }
    buf_append_cstr(&body, "</Delete>");
    ask_init("POST", "/b?delete");
    ask_body_of(body.len);
    ask_start();
    ask_give(buf_cstr(&body));
    ask_give_end();
    buf_done(&body);
}

// Runs one more turn. The number of invalidations that it starts is bounded, and so are those in
// flight.
static void turn_starts_few(const unsigned *started, const unsigned *answered)
{
    unsigned before = *started;
    (void)doors_turn();
    cr_assert_leq(*started - before, PROXY_KEYS_PER_TURN);
    cr_assert_leq(*started - *answered, PROXY_KEYS_WINDOW);
    cr_assert_leq(chunk_budget_kind_bytes(BUDGET_WRITES),
                  PROXY_KEYS_WINDOW * PROXY_KEY_BYTES + open_keys_bytes(2 * BATCH));
}

// A batch delete of a thousand keys is invalidated in slices, a window at a time, before the origin
// is asked and after it has answered. All keys stay open until then, and all memory is counted.
Test(serve_pass, batch_delete_is_sliced_over_turns_and_counted)
{
    ask_for_batch();
    cr_assert_leq(doors.begun_count, PROXY_KEYS_AT_ONCE);
    cr_assert_eq(doors.open_count, BATCH);
    while (doors.ready_count < BATCH) {
        turn_starts_few(&doors.begun_count, &doors.ready_count);
        cr_assert(!doors.relay_running);
        struct key_write *kw = doors.begun[doors.ready_count++];
        kw->on_ready(kw);
    }
    (void)doors_turn();
    cr_assert(doors.relay_running);
    cr_assert_eq(doors.begun_count, BATCH);
    cr_assert_eq(ask_upload(), ERR_OK);
    ask_origin_head(200, 4);
    ask_origin_body("<ok>");
    doors_relay_end(ERR_OK);
    cr_assert_leq(doors.ending_count, PROXY_KEYS_AT_ONCE);
    while (doors.ended_count < BATCH) {
        turn_starts_few(&doors.ending_count, &doors.ended_count);
        cr_assert_eq(doors.open_count, BATCH);
        struct key_write *kw = doors.ending[doors.ended_count++];
        kw->on_ended(kw);
    }
    (void)doors_turn();
    cr_assert_eq(doors.open_count, 0);
    while (ask_reads() == HTTP_PULL_SLICE) {
    }
    ask_finish();
}

// If others use up the budget, the batch delete is refused before the origin is asked. If only the
// memory for its window is short, it goes on with a small window.
Test(serve_pass, batch_delete_beyond_the_budget_gets_slow_down)
{
    for (unsigned refused = 0; refused < 2; refused++) {
        uint64_t others = (16u << 20) - (refused > 0 ? 0 : open_keys_bytes(2 * BATCH));
        chunk_budget_charge(BUDGET_WRITES, others);
        ask_for_batch();
        ask_all_ready();
        cr_assert_eq(doors.relay_running, refused == 0);
        cr_assert_eq(doors.open_count, refused > 0 ? 0 : BATCH);
        cr_assert_eq(doors.begun_count, refused > 0 ? 0 : BATCH);
        if (refused > 0) {
            cr_assert_eq(doors.fail_err, ERR_OVERLOAD);
        } else {
            ask_origin_head(403, 0);
            doors_relay_end(ERR_OK);
        }
        ask_all_ended();
        chunk_budget_discharge(BUDGET_WRITES, others);
        ask_finish();
    }
}

// A client leaves in the middle of the first round: the invalidations in flight end, and the rest
// do not begin.
Test(serve_pass, batch_delete_whose_client_leaves_begins_no_more)
{
    ask_for_batch();
    (void)doors_turn();
    unsigned begun = doors.begun_count;
    cr_assert_lt(begun, BATCH);
    ask_exchange_ends();
    ask_all_ready();
    cr_assert_eq(doors.begun_count, begun);
    cr_assert(!doors.relay_running);
    cr_assert_eq(doors.open_count, 0);
    cr_assert_eq(doors.dead_count, 1);
    ask_finish();
}

// A form's key is invalidated before its first byte is sent on. A form without a key is not sent.
Test(serve_pass, form)
{
    static const char head[] =
        "--B\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nup/k\r\n";
    static const char tail[] = "--B\r\nContent-Disposition: form-data; name=\"file\"; "
                               "filename=\"f\"\r\n\r\nbytes\r\n--B--\r\n";
    ask_init("POST", "/b");
    ask_header("Content-Type", "multipart/form-data; boundary=B");
    ask_body_of(sizeof(head) + sizeof(tail) - 2);
    ask_start();
    ask_give(head);
    cr_assert_eq(doors.begun_count, 0);
    ask_give(tail);
    cr_assert_eq(doors.begun_count, 1);
    cr_assert(span_equal_cstr(doors.begun[0]->key->key, "up/k"));
    ask_give_end();
    cr_assert(!doors.relay_running);
    ask_all_ready();
    cr_assert_eq(ask_upload(), ERR_OK);
    cr_assert_eq(ask.uploaded.len, sizeof(head) + sizeof(tail) - 2);
    cr_assert(!doors.relay->is_unsigned);
    ask_origin_head(204, 0);
    doors_relay_end(ERR_OK);
    ask_all_ended();
    cr_assert_eq(doors.reply.status, 204);
    ask_finish();

    ask_init("POST", "/b");
    ask_header("Content-Type", "multipart/form-data; boundary=B");
    ask_body_of(sizeof(tail) - 1);
    ask_start();
    ask_give(tail);
    cr_assert_eq(doors.fail_err, ERR_INVALID_ARGUMENT);
    ask_finish();
}

// A rename drops both names.
Test(serve_pass, rename)
{
    ask_init("PUT", "/b/new?renameObject");
    ask_header("x-amz-rename-source", "/b/old%20name");
    ask_body_of(0);
    ask_start();
    cr_assert_eq(doors.begun_count, 3);
    cr_assert(span_equal_cstr(doors.begun[0]->key->key, "new"));
    cr_assert(span_equal_cstr(doors.begun[1]->key->key, "old name"));
    cr_assert(span_equal_cstr(doors.begun[2]->key->key, "b/old name"));
    ask_all_ready();
    doors_relay_end(ERR_NOT_IMPLEMENTED);
    ask_all_ended();
    ask_finish();
}

// A request that may change any key of a bucket invalidates all of it before the origin is asked,
// and again before the client is answered. If that cannot be noted, the origin is not asked.
Test(serve_pass, whole_bucket)
{
    static const char *const requests[][2] = {
        {"DELETE", "/b"}, {"POST", "/b?delete&z=1"}, {"PUT", "/b?what"}, {"PATCH", "/b"}};
    for (unsigned i = 0; i < ARRAY_LEN(requests); i++) {
        ask_init(requests[i][0], requests[i][1]);
        ask_start();
        cr_assert_eq(doors.begun_count, 0);
        cr_assert(!doors.relay_running);
        doors.bucket_begun->on_ready(doors.bucket_begun);
        cr_assert(doors.relay_running);
        ask_origin_head(204, 0);
        doors_relay_end(ERR_OK);
        cr_assert_eq(doors.replies, 0);
        cr_assert_eq(doors.bucket_ending, doors.bucket_begun);
        doors.bucket_ending->on_ended(doors.bucket_ending);
        cr_assert_eq(doors.reply.status, 204);
        ask_finish();

        ask_init(requests[i][0], requests[i][1]);
        ask_start();
        doors.bucket_begun->err = ERR_DISK_FULL;
        doors.bucket_begun->on_ready(doors.bucket_begun);
        cr_assert(!doors.relay_running);
        doors.bucket_ending->on_ended(doors.bucket_ending);
        cr_assert_eq(doors.fail_err, ERR_NOT_RECORDED);
        ask_finish();
    }
    ask_init("OPTIONS", "/b");
    ask_start();
    cr_assert_null(doors.bucket_begun);
    ask_all_ready();
    ask_origin_head(200, 0);
    doors_relay_end(ERR_OK);
    ask_all_ended();
    ask_finish();
}

// A copy's source gets the name that its origin knows, and is never taken from another origin.
Test(serve_pass, copy_source)
{
    static struct proxy_bucket buckets[2];
    buckets[0] = (struct proxy_bucket){"b", ask_origin(0), "real-b"};
    buckets[1] = (struct proxy_bucket){"other", ask_origin(1), "other"};
    ask_live.settings.buckets = buckets;
    ask_live.settings.bucket_count = 2;
    ask_init("PUT", "/b/k");
    ask_header("x-amz-copy-source", "/b/dir/a%20b?versionId=v");
    ask_body_of(0);
    ask_start();
    ask_all_ready();
    struct span source;
    cr_assert(headers_get(doors.relay->headers, SPAN("x-amz-copy-source"), &source));
    cr_assert(span_equal_cstr(source, "/real-b/dir/a%20b?versionId=v"));
    ask_origin_head(200, -1);
    ask_origin_body("<CopyObjectResult/>");
    doors_relay_end(ERR_OK);
    ask_all_ended();
    ask_finish();

    // Presigning may move the header into the query. It is sent on as the header that it is.
    ask_init("PUT", "/b/k?partNumber=1&X-Amz-Copy-Source=b%2Fa&uploadId=u"
                    "&x-amz-copy-source-range=bytes%3D0-9");
    ask_body_of(0);
    ask_start();
    cr_assert(headers_get(doors.relay->headers, SPAN("x-amz-copy-source"), &source));
    cr_assert(span_equal_cstr(source, "/real-b/a"));
    cr_assert(headers_get(doors.relay->headers, SPAN("x-amz-copy-source-range"), &source));
    cr_assert(span_equal_cstr(source, "bytes=0-9"));
    cr_assert_eq(doors.relay->request->param_count, 2);
    ask_origin_head(200, -1);
    doors_relay_end(ERR_OK);
    ask_finish();

    ask_init("PUT", "/b/k");
    ask_header("x-amz-copy-source", "/other/k");
    ask_body_of(0);
    ask_start();
    cr_assert_eq(doors.fail_err, ERR_NOT_IMPLEMENTED);
    ask_finish();
    ask_live.settings.bucket_count = 0;
}

// Neither direction queues more than its limit: the client is paused, and so is the origin.
Test(serve_pass, back_pressure)
{
    static char block[CHUNK_SIZE];
    ask_init("PUT", "/b/k");
    ask_body_of(100 * sizeof(block));
    ask_start();
    unsigned given = 0;
    while (!doors.body_paused) {
        (void)doors.sink->on_data(doors.sink, (struct span){block, sizeof(block)});
        cr_assert_lt(++given, 10);
    }
    ask_all_ready();
    cr_assert_eq(ask_upload(), ERR_AGAIN);
    cr_assert(!doors.body_paused);
    ask_exchange_ends();
    doors_relay_end(ERR_CANCELLED);
    ask_all_ended();
    ask_finish();

    ask_init("GET", "/b/k?torrent");
    ask_start();
    ask_origin_head(200, -1);
    given = 0;
    while (!doors.relay_paused) {
        (void)doors.relay->on_body(doors.relay, (struct span){block, sizeof(block)});
        cr_assert_lt(++given, 10);
    }
    cr_assert_eq(ask_reads(), HTTP_PULL_WAIT);
    cr_assert(!doors.relay_paused);
    ask_exchange_ends();
    cr_assert(doors.relay_cancelled);
    doors_relay_end(ERR_CANCELLED);
    ask_finish();
}

// A request that is no S3 request at all gets an error that names the remedy, and is not relayed.
Test(serve_pass, not_s3)
{
    ask_init("POST", "/");
    ask_body_of(0);
    ask_start();
    cr_assert_eq(doors.fail_err, ERR_NOT_IMPLEMENTED);
    cr_assert_null(ask.r.pass);
    ask_finish();
}
