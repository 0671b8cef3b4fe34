// SPDX-License-Identifier: Apache-2.0
// Fetches a run of an object of which the cache knows nothing, for a reader with a condition or a
// suffix range. Both are sent to the origin with the run's request, so that no HEAD comes first.
//
//   condition  The origin evaluates it. Its 304 is the answer for readers with the same condition
//              only. Its 412 is the answer for those of them that came before the request was sent.
//              All others ask again. The version that the answer names makes older runs invalid
//              (rule 31). Before the head comes, a reader with a version of its own does not join.
//   suffix     The owner of the last stripe is unknown until the size is known, so the key's home
//              makes the run (rule 2). It requests the wanted bytes and, before them, one block
//              less one byte. So the answer holds the whole block in which the wanted bytes begin,
//              wherever the object ends. Bytes before that block are dropped. A streamed run
//              requests the wanted bytes only.
//
// Runs on the key's home, which owns the stripe that such a run is asked for.
#include "fill/fill_private.h"

// --- condition -----------------------------------------------------------------------------------

void fill_unknown_ask(struct fill *fill, struct origin_fetch *f)
{
    check(fill->object == NULL);
    f->condition = &fill->condition;
    if (f->kind == ORIGIN_GET_RANGE && fill->suffix_bytes > 0) {
        f->suffix = fill->suffix_bytes + (fill_is_streamed(fill) ? 0 : fill->block_size_bytes - 1);
    }
}

bool fill_unknown_is_judged(const struct fill *fill, enum err err)
{
    return fill->object == NULL && fill->condition.kind != ORIGIN_CONDITION_NONE &&
           (err == ERR_NOT_MODIFIED || err == ERR_ORIGIN_CHANGED);
}

// Packs the headers of a 304, which the reader passes on to its client.
static void pack_validators(const struct fill *fill, struct buf *out)
{
    struct s3_error_answer answer = {.status = 304, .headers = fill->fetch.headers};
    s3_error_pack(&answer, out);
}

void fill_unknown_end(struct fill *fill, enum err err)
{
    check(fill->phase == FILL_ASKED && !fill_is_fetching(fill));
    struct buf packed;
    buf_init(&packed, STORE_HEADERS_MAX);
    if (err == ERR_NOT_MODIFIED) {
        pack_validators(fill, &packed);
    }
    fill->failed = err == ERR_NOT_MODIFIED ? err : ERR_PRECONDITION_FAILED;
    fill->failed_document = buf_ok(&packed) ? buf_span(&packed) : (struct span){NULL, 0};
    list_for_each(node, &fill->readers)
    {
        struct attachment *a = container_of(node, struct attachment, node);
        bool is_for = a->is_condition;
        fill_end_attachment(a, is_for ? OUTCOME_ERROR : OUTCOME_REJOIN,
                            is_for ? fill->failed : ERR_OK,
                            is_for ? fill->failed_document : (struct span){NULL, 0});
    }
    fill_leave_table(fill);
    fill->failed_document = (struct span){NULL, 0};
    buf_done(&packed);
}

// --- suffix --------------------------------------------------------------------------------------

void fill_unknown_place(struct fill *fill, uint64_t size_bytes)
{
    check(fill->phase == FILL_ASKED && fill->suffix_bytes > 0 &&
          fill->received == fill->first_byte);
    uint64_t block_size = fill->block_size_bytes;
    fill->wanted_first_byte = size_bytes - min_u64(fill->suffix_bytes, size_bytes);
    fill->first_block = fill->wanted_first_byte / block_size;
    fill->first_byte =
        fill_is_streamed(fill) ? fill->wanted_first_byte : fill->first_block * block_size;
    fill->limit_byte = max_u64(size_bytes, fill->first_byte + 1);
    fill->received = fill->retained_from = fill->first_byte;
    uint64_t blocks = (size_bytes - fill->first_byte + block_size - 1) / block_size;
    fill->block_count = (uint32_t)max_u64(blocks, 1);
    list_for_each(node, &fill->readers) // the reader that began the run
    {
        struct attachment *a = container_of(node, struct attachment, node);
        a->next_byte = a->acked_byte = fill->wanted_first_byte;
    }
    fill->suffix_bytes = 0;
}
