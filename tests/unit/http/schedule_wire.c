// SPDX-License-Identifier: Apache-2.0
// The bytes of a talk: its requests as they are sent, and the judge of the bytes that were read.
// The judge reads strictly, and knows only the turns' plans and the door's promises. There is at
// most one reply to each request, in order, framed as planned and announced, with the bytes of just
// that reply. 100 Continue comes where it is due and nowhere else. Nothing comes after a close. A
// cut needs a reason.
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- requests ------------------------------------------------------------------------------------

static void compose_bad_head(struct buf *out)
{
    static const char *const heads[] = {
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "PUT / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    buf_append_cstr(out, heads[pick(ARRAY_LEN(heads))]);
}

static void compose_chunks(const struct turn *t, struct buf *out)
{
    struct span body = request_body(t->body_len);
    for (size_t done = 0; done < body.len;) {
        size_t len = 1 + pick(one_in(3) ? 20 : 40000);
        len = len < body.len - done ? len : body.len - done;
        buf_printf(out, one_in(2) ? "%zx%s\r\n" : "%zX%s\r\n", len, one_in(8) ? ";a=b" : "");
        buf_append(out, body.ptr + done, len);
        buf_append_cstr(out, "\r\n");
        done += len;
    }
    if (t->flaw == BAD_CHUNK) {
        static const char *const ends[] = {"x\r\n", "-1\r\n", "\r\n", "0x0\r\n\r\n",
                                           "fffffffffffffffff\r\n"};
        buf_append_cstr(out, ends[pick(ARRAY_LEN(ends))]);
    } else {
        buf_append_cstr(out, one_in(4) ? "0\r\nTrailer: x\r\n\r\n" : "0\r\n\r\n");
    }
}

static void compose(const struct turn *t, struct buf *out)
{
    static const char *const methods[] = {"GET", "PUT", "POST", "DELETE"};
    if (t->flaw == BAD_HEAD) {
        compose_bad_head(out);
        return;
    }
    buf_printf(out, "%s /t%u/%u HTTP/1.%c\r\nHost: localhost\r\n",
               t->is_head ? "HEAD" : methods[pick(ARRAY_LEN(methods))], t->talk->number, t->index,
               t->is_http10 ? '0' : '1');
    buf_append_cstr(out, t->expects ? "Expect: 100-continue\r\n" : "");
    buf_append_cstr(out, t->asks_close ? "Connection: close\r\n" : "");
    buf_append_cstr(out, t->asks_keep_alive ? "Connection: keep-alive\r\n" : "");
    if (t->framing == BY_CHUNKS) {
        buf_append_cstr(out, "Transfer-Encoding: chunked\r\n\r\n");
        compose_chunks(t, out);
    } else if (t->framing == BY_LENGTH) {
        buf_printf(out, "Content-Length: %u\r\n\r\n", t->body_len);
        buf_append_span(out, request_body(t->body_len));
    } else {
        buf_append_cstr(out, "\r\n");
    }
}

void talk_compose(struct talk *talk)
{
    for (unsigned i = 0; i < talk->turn_count; i++) {
        compose(&talk->turns[i], &talk->out);
    }
    must(buf_ok(&talk->out), "no room");
}

// --- replies -------------------------------------------------------------------------------------

struct reading {
    const struct talk *talk;
    struct span rest;
    bool is_late;
    unsigned next; // turn whose reply comes next
    bool closed;   // a reply said that it is the last
};

struct reply_head {
    unsigned status;
    bool has_id, closes, chunked, has_length;
    unsigned number, index;
    uint64_t length;
};

// Up to and with the empty line; false: it is not whole.
static bool take_head(struct span *rest, struct span *ret_head)
{
    for (size_t i = 3; i < rest->len; i++) {
        if (memcmp(rest->ptr + i - 3, "\r\n\r\n", 4) == 0) {
            *ret_head = (struct span){rest->ptr, i - 1};
            rest->ptr += i + 1;
            rest->len -= i + 1;
            return true;
        }
    }
    return false;
}

static bool take_line(struct span *rest, struct span *ret_line)
{
    for (size_t i = 1; i < rest->len; i++) {
        if (rest->ptr[i - 1] == '\r' && rest->ptr[i] == '\n') {
            *ret_line = (struct span){rest->ptr, i - 1};
            rest->ptr += i + 1;
            rest->len -= i + 1;
            return true;
        }
    }
    return false;
}

static void read_header(struct span name, struct span value, struct reply_head *head)
{
    if (span_equal_cstr(name, "X-Id")) {
        char text[32];
        snprintf(text, sizeof(text), "%.*s", (int)value.len, value.ptr);
        must(!head->has_id && sscanf(text, "%u/%u", &head->number, &head->index) == 2, "bad id");
        head->has_id = true;
    } else if (span_equal_cstr(name, "Content-Length")) {
        must(!head->has_length && span_to_u64(value, &head->length), "bad length");
        head->has_length = true;
    } else if (span_equal_cstr(name, "Transfer-Encoding")) {
        must(!head->chunked && span_equal_cstr(value, "chunked"), "bad coding");
        head->chunked = true;
    } else if (span_equal_cstr(name, "Connection")) {
        head->closes = span_equal_cstr(value, "close");
        must(head->closes || span_equal_cstr(value, "keep-alive"), "bad Connection");
    } else {
        must(span_equal_cstr(name, "Date"), "a header of nobody: %.*s", (int)name.len, name.ptr);
    }
}

static void read_head(struct span bytes, struct reply_head *ret_head)
{
    struct span line;
    uint64_t status;
    *ret_head = (struct reply_head){0};
    must(take_line(&bytes, &line) && span_starts_with(line, SPAN("HTTP/1.1 ")),
         "a bad status line");
    must(line.len > 13 && line.ptr[12] == ' ', "a bad status line");
    must(span_to_u64((struct span){line.ptr + 9, 3}, &status), "a bad status line");
    ret_head->status = (unsigned)status;
    while (take_line(&bytes, &line)) {
        size_t colon = span_find(line, ':');
        must(colon + 1 < line.len && line.ptr[colon + 1] == ' ', "a bad header line");
        read_header((struct span){line.ptr, colon},
                    (struct span){line.ptr + colon + 2, line.len - colon - 2}, ret_head);
    }
    must(!ret_head->chunked || !ret_head->has_length, "two framings");
}

static bool client_is_to_blame(const struct reading *r)
{
    const struct talk *talk = r->talk;
    return r->is_late || talk->client_left || (talk->is_shut && talk->sent < talk->out.len);
}

// The end of what was read lies inside a reply.
static void judge_cut(const struct reading *r, const struct turn *t)
{
    must(client_is_to_blame(r) || (t != NULL && t->may_be_cut),
         "cut without a reason: talk %u turn %u", r->talk->number, r->next);
    // Bytes that a client sends after the wait for it has ended reach a closed socket, so the
    // kernel resets the connection.
    bool sent_too_late = r->is_late && t != NULL && t->done_early;
    must(t == NULL || !t->is_done || t->outcome != HTTP_DONE || r->talk->client_left ||
             sent_too_late,
         "cut, though it is called done");
}

static bool take_bytes(struct reading *r, const struct turn *t, uint64_t offset, uint64_t len)
{
    uint64_t n = min_u64(len, r->rest.len);
    for (uint64_t i = 0; i < n; i++) {
        must(r->rest.ptr[i] == reply_byte(t, offset + i), "wrong byte %llu of talk %u turn %u",
             (unsigned long long)(offset + i), t->talk->number, t->index);
    }
    r->rest.ptr += n;
    r->rest.len -= n;
    return n == len;
}

static bool cut_in_framing(struct reading *r)
{
    must(r->rest.len < 10, "a bad chunk size");
    r->rest.len = 0;
    return false;
}

// False: it ends before its last chunk.
static bool take_chunks(struct reading *r, const struct turn *t)
{
    struct span line;
    for (uint64_t offset = 0;;) {
        if (!take_line(&r->rest, &line)) {
            return cut_in_framing(r);
        }
        must(line.len > 0 && line.len <= 8, "a bad chunk size");
        char text[16];
        char *end;
        snprintf(text, sizeof(text), "%.*s", (int)line.len, line.ptr);
        uint64_t len = strtoull(text, &end, 16);
        must(*end == '\0', "a bad chunk size");
        must(len > 0 || offset == t->reply_len, "chunks end at %llu of %u",
             (unsigned long long)offset, t->reply_len);
        must(len <= t->reply_len - offset, "more than there is");
        if (!take_bytes(r, t, offset, len)) {
            return false;
        }
        offset += len;
        if (r->rest.len < 2) {
            return cut_in_framing(r);
        }
        must(take_line(&r->rest, &line) && line.len == 0, "a bad chunk end");
        if (len == 0) {
            return true;
        }
    }
}

// Reads the body as the plan and the head say it. Returns false if it is cut.
static bool take_body(struct reading *r, const struct turn *t, const struct reply_head *head)
{
    if (t->kind == BY_NOTHING) {
        must(!head->has_length && !head->chunked, "a framing of no body");
        return true;
    }
    bool has_length = t->has_length || t->kind == BY_BODY;
    must(head->has_length == (has_length && !(t->is_head && !t->has_length)), "length");
    must(!head->has_length || head->length == t->reply_len, "a wrong length");
    if (t->is_head) {
        must(!head->chunked, "a coding of no body");
        return true;
    }
    must(head->chunked == (!has_length && !t->is_http10), "a wrong framing");
    if (head->chunked) {
        return take_chunks(r, t);
    }
    return take_bytes(r, t, 0, t->reply_len);
}

static void judge_reply(struct reading *r, const struct turn *t, const struct reply_head *head)
{
    must(head->number == t->talk->number && head->index == t->index, "the reply %u/%u for %u/%u",
         head->number, head->index, t->talk->number, t->index);
    must(t->has_replied && head->status == t->status, "status %u", head->status);
    must(head->closes || !t->must_close, "talk %u turn %u does not close", head->number,
         head->index);
    must(!head->closes || t->may_close, "talk %u turn %u closes", head->number, head->index);
    r->closed = head->closes;
    if (!take_body(r, t, head)) {
        must(r->rest.len == 0, "a framing that breaks off");
        judge_cut(r, t);
        r->closed = true;
    }
    r->next++;
}

// A refusal by the front itself: a bad head, or one that took too long.
static void judge_refusal(struct reading *r, const struct turn *t, const struct reply_head *head)
{
    must(r->is_late || (t != NULL && t->flaw == BAD_HEAD), "refused: talk %u turn %u, %u",
         r->talk->number, r->next, head->status);
    must(head->status >= 400 && head->closes && head->has_length, "a refusal of %u", head->status);
    must(t == NULL || !t->has_begun, "refused though it has begun");
    // Whether enough of a late head had arrived to know that it was a HEAD.
    bool is_bodiless = t != NULL && t->is_head && r->rest.len == 0;
    if (!is_bodiless && r->rest.len < head->length) {
        judge_cut(r, NULL);
        r->rest.len = 0;
    } else if (!is_bodiless) {
        r->rest.ptr += head->length;
        r->rest.len -= head->length;
    }
    r->next++;
    r->closed = true;
}

static void judge_next(struct reading *r)
{
    const struct talk *talk = r->talk;
    const struct turn *t = r->next < talk->turn_count ? &talk->turns[r->next] : NULL;
    bool was_continued = false;
    struct span bytes;
    struct reply_head head;
    for (;;) {
        if (!take_head(&r->rest, &bytes)) {
            judge_cut(r, t);
            r->rest.len = 0;
            r->closed = true;
            return;
        }
        read_head(bytes, &head);
        if (head.status != 100) {
            break;
        }
        must(t != NULL && t->expects && !was_continued, "100 Continue for nobody");
        must(bytes.len == strlen("HTTP/1.1 100 Continue\r\n"), "a long interim reply");
        was_continued = true;
        if (r->rest.len == 0) {
            return; // its reply is still to come
        }
    }
    if (!head.has_id) {
        judge_refusal(r, t, &head);
        return;
    }
    must(t != NULL, "a reply to nobody");
    must(was_continued == t->continue_due, "100 Continue: %d", was_continued);
    judge_reply(r, t, &head);
}

// Checks that every request before the first close has been answered, and that the connection is
// open or closed as announced.
static void judge_end(const struct reading *r)
{
    const struct talk *talk = r->talk;
    const struct turn *t = r->next < talk->turn_count ? &talk->turns[r->next] : NULL;
    bool is_over =
        r->closed || talk->is_shut ||
        (r->next > 0 && r->next <= talk->turn_count && talk->turns[r->next - 1].flaw == BAD_CHUNK);
    if (client_is_to_blame(r) || (t != NULL && !r->closed && t->reply_when == AT_NO_TIME)) {
        return;
    }
    if (t != NULL && !r->closed && t->may_be_cut) {
        must(t->is_done && talk->at_end, "talk %u is not closed", talk->number);
        return;
    }
    must(r->closed || t == NULL || talk->turns[r->next - (r->next > 0)].flaw == BAD_CHUNK,
         "talk %u: %u replies of %u", talk->number, r->next, talk->turn_count);
    must(is_over == talk->at_end, "talk %u: over %d, closed %d", talk->number, is_over,
         talk->at_end);
}

void talk_judge(const struct talk *talk, bool is_late)
{
    struct reading r = {.talk = talk, .rest = buf_span(&talk->in), .is_late = is_late};
    while (r.rest.len > 0) {
        must(!r.closed, "bytes behind a close: talk %u turn %u", talk->number, r.next);
        must(r.next == 0 || r.next > talk->turn_count || talk->turns[r.next - 1].flaw != BAD_CHUNK,
             "bytes behind a broken body");
        judge_next(&r);
    }
    judge_end(&r);
}
