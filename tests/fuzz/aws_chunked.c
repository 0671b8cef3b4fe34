// SPDX-License-Identifier: Apache-2.0
// The chunked decoder over any bytes: the outcome does not depend on where the input was cut. A
// finished body has the declared length, and only bytes from chunks are passed on. First byte: the
// options; second: the step.
#include "s3/s3.h"

#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static enum err on_data(void *ctx, struct span data)
{
    struct buf *out = ctx;
    check(data.len > 0);
    buf_append_span(out, data);
    return ERR_OK;
}

static enum err decode(const struct aws_chunked_options *options, struct span input, size_t step,
                       struct buf *out, bool *ret_finished)
{
    struct aws_chunked_decoder *d = aws_chunked_decoder_new(options);
    enum err err = ERR_OK;
    buf_init(out, 1 << 20);
    while (input.len > 0 && err == ERR_OK) {
        size_t len = input.len < step ? input.len : step;
        err = aws_chunked_decode(d, (struct span){input.ptr, len}, on_data, out);
        input.ptr += len;
        input.len -= len;
    }
    *ret_finished = aws_chunked_finished(d);
    aws_chunked_decoder_free(d);
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const uint8_t KEY[32] = {1};
    if (len < 3 || len > 1 << 16) {
        return 0;
    }
    struct aws_chunked_options options = {
        .has_signatures = (bytes[0] & 1) != 0,
        .signing_key = KEY,
        .amz_date = SPAN("20130524T000000Z"),
        .scope = SPAN("20130524/us-east-1/s3/aws4_request"),
        .seed_signature = SPAN("4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"),
        .has_trailer = (bytes[0] & 2) != 0,
        .has_decoded_length = (bytes[0] & 4) != 0,
        .decoded_length = bytes[0] >> 3};
    struct span input = {(const char *)bytes + 2, len - 2};
    struct buf whole, pieces;
    bool whole_finished, pieces_finished;
    enum err whole_err = decode(&options, input, input.len, &whole, &whole_finished);
    enum err pieces_err = decode(&options, input, bytes[1] % 31u + 1u, &pieces, &pieces_finished);
    check(whole_err == pieces_err);
    check(whole_finished == pieces_finished);
    check(span_equal(buf_span(&whole), buf_span(&pieces)));
    check(!whole_finished || whole_err == ERR_OK);
    check(!whole_finished || !options.has_decoded_length || whole.len == options.decoded_length);
    check(!whole_finished || !options.has_signatures); // nobody guesses a signature
    buf_done(&whole);
    buf_done(&pieces);
    return 0;
}
