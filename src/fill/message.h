// SPDX-License-Identifier: Apache-2.0
// The messages between workers. messages.def names each message, its payload, its sender and its
// receiver; messages that carry the same data share a payload type.
//
// A message owns the references in its payload. A receiver takes one by clearing the field, and
// message.c releases the others. Between two workers, messages arrive in the order in which they
// were sent. A worker sends to itself in the same way.
#ifndef FOREBAY_FILL_MESSAGE_H
#define FOREBAY_FILL_MESSAGE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fill/fill.h"

struct attachment;
struct fill;

// The version that the home gave to a reader last (home_given.c).
struct home_given {
    uint64_t version;  // version_hash() of that version; 0: the object does not exist
    uint64_t until_us; // a run of another version may be older if it was requested until then
    // A run of any version may be older if it was requested until then, because the version given
    // last is not known.
    uint64_t any_until_us;
    // `described` is the version_hash() of the version whose headers were given last, and `headers`
    // is their fill_version_headers_hash(). 0: the headers are in doubt. Other headers of that
    // version may be older if they were requested until `described_until_us`. `described` may
    // differ from `version`, because the version given last may be in doubt while its headers are
    // not.
    uint64_t described, headers, described_until_us;
    // version_hash() of a version that is not current, according to an answer of the origin (412).
    uint64_t denied;
    uint64_t denied_until_us; // runs requested up to then may have the denied version
};

// When the headers of the key's version changed (home_redescribed.c).
struct home_redescribed {
    uint64_t at_us;   // descriptions learnt until then are outdated, except those with `headers`
    uint64_t headers; // fill_version_headers_hash() of the headers since then
};

enum fill_message_type {
#define MESSAGE(name, ...) MESSAGE_##name,
#include "fill/messages.def"
#undef MESSAGE
    MESSAGE_COUNT_
};

// The first member of every payload.
struct fill_message {
    struct message message;
    enum fill_message_type type;
    struct fill_worker *from;
    // Reference; NULL: a pointer in the payload identifies the receiver's object.
    struct object_key *key;
};

struct ask_message {
    struct fill_message base;
    struct subscription *subscription; // only the message's holder may use its `ask`
};

struct first_message {
    struct fill_message base;
    struct subscription *subscription;
    uint64_t token;
    // The owner must not join the reader to a run that home_given_precedes() calls older.
    struct home_given given;
    // Nor may the owner join it to a run that home_redescribed_outdates() calls outdated.
    struct home_redescribed redescribed;
};

struct version_message {
    struct fill_message base;
    struct store_object *object; // reference
    uint64_t token;              // 0 in VERSION_GONE
    uint64_t asked_us;           // when the run's request was sent; 0 in VERSION_GONE
};

struct first_end_message {
    struct fill_message base;
    uint64_t token;
    enum err err;                      // ERR_OK: a head came, or no request was sent
    struct origin_condition condition; // the reader's condition, if the error is its result
    // The version_hash() of the version that a 304 confirms or a 412 denies. 0: not known.
    uint64_t version;
    uint64_t asked_us;    // when the run's request was sent; 0: no request was sent
    struct span document; // the origin's error, packed; on the heap; may be empty
};

struct publish_message {
    struct fill_message base;
    struct fill *fill;
    struct store_object *object; // reference
    // Borrowed: the run keeps it pinned until it is visible in the index, or dropped.
    struct store_place place;
    uint64_t first_byte, end_byte;
    uint64_t asked_us;             // when the run's request was sent
    struct s3_checksum_state *sum; // checksum state of these bytes; owned; NULL: not known
};

struct floor_message {
    struct fill_message base;
    uint64_t floor;
};

struct write_message {
    struct fill_message base;
    struct key_write *write;
};

struct verdict_message {
    struct fill_message base;
    struct fill *fill;
};

struct leave_message {
    struct fill_message base;
    struct attachment *attachment;
};

struct taken_message {
    struct fill_message base;
    struct attachment *attachment;
    uint32_t bytes;
};

struct want_message {
    struct fill_message base;
    struct attachment *attachment;
    uint64_t first_byte;
    bool no_pages;
};

struct attached_message {
    struct fill_message base;
    struct subscription *subscription;
    struct attachment *attachment;
    bool joined;            // the run was already in flight
    bool whole;             // all bytes of the run had already been received
    uint64_t here_end_byte; // up to this offset they had been
};

struct head_message {
    struct fill_message base;
    struct subscription *subscription;
    struct store_object *object; // reference
    uint64_t end_byte;
    bool stored, weak;
    unsigned origin_status;
    const char *unstored_why; // static text; NULL: the run is stored
    char origin_id[ORIGIN_ID_SIZE];
};

struct body_message {
    struct fill_message base;
    struct subscription *subscription;
    struct chunk *chunk; // reference
    uint32_t offset, len;
    uint64_t first_byte;
};

struct pages_message {
    struct fill_message base;
    struct subscription *subscription;
    struct store_place pages; // pinned for the receiver, which unpins it
    uint64_t first_byte;
};

// The last answer to a subscription. `final` ends the delivery of a run; the other messages with
// this payload answer an ask.
struct answer_message {
    struct fill_message base;
    struct subscription *subscription;
    enum subscription_outcome outcome;
    enum err err;
    struct store_object *object; // reference; `revalidated`: NULL unless another version was found
    struct store_place place;    // pinned for the receiver, which unpins it; or no segment
    struct span document;        // the origin's error, packed; on the heap; may be empty
    // When the request that told the home the version was sent. 0: the origin was asked because of
    // this ask.
    uint64_t validated_us;
};

// Returns a message that is zeroed except for its base. Takes a reference to the key, which may be
// NULL.
struct fill_message *message_new(struct fill_worker *from, enum fill_message_type type,
                                 struct object_key *key);
void message_send(struct fill_worker *to, struct fill_message *message);
// Frees the message, with all references that the receiver has not taken.
void message_release(struct fill_message *message);
// Returns a copy of `s` on the heap, for the document of a message. Returns an empty span if memory
// is short.
struct span message_document(struct span s);

// Answers the ask with AGAIN.
void message_send_again(struct fill_worker *from, struct subscription *sub);

// Defines message_route_new() and so on, one for each message, and declares each receiver.
#define MESSAGE(name, payload, receiver, ...)                                                      \
    static inline struct payload##_message *message_##name##_new(struct fill_worker *from,         \
                                                                 struct object_key *key)           \
    {                                                                                              \
        static_assert(offsetof(struct payload##_message, base) == 0, "what is freed");             \
        return (struct payload##_message *)(void *)message_new(from, MESSAGE_##name, key);         \
    }                                                                                              \
    void receiver(struct fill_worker *fw, struct payload##_message *m);
#include "fill/messages.def"
#undef MESSAGE

// message_dispatch.c: calls the receiver and releases the message.
void message_dispatch(struct worker *to, struct message *delivered);

#endif
