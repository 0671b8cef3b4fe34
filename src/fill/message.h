// SPDX-License-Identifier: Apache-2.0
// The messages between workers: one payload type each, or the same where the same is carried.
// messages.def says who sends which to whom.
//
// What a payload refers to is given away with it: message.c gives back what the receiver has not
// taken. A receiver takes a reference by clearing the field. Between two workers messages arrive in
// the order in which they were sent; to itself a worker sends like to any other.
#ifndef FOREBAY_FILL_MESSAGE_H
#define FOREBAY_FILL_MESSAGE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fill/fill.h"

struct attachment;
struct fill;

// The version that the home gave last (home_given.c).
struct home_given {
    uint64_t version;      // its version_hash(); 0: that there is no object
    uint64_t until_us;     // what was asked for until then and is of another may be older
    uint64_t any_until_us; // the same of any version: which was given last is not known any more
    // The version whose headers were given last, by its version_hash(); these, by
    // fill_version_headers_hash(), 0: in doubt; and until when others of it may be older, if asked
    // for then. It need not be the version above, because which version was given last may be in
    // doubt while its headers are not.
    uint64_t described, headers, described_until_us;
    uint64_t denied;          // a version that was not current any more (a 412)
    uint64_t denied_until_us; // it may be what was asked for until then
};

// Since when the headers of the key's version are others than before (home_redescribed.c).
struct home_redescribed {
    uint64_t at_us;   // a description that was learnt until then is outdated ...
    uint64_t headers; // ... unless its fill_version_headers_hash() is this one
};

enum fill_message_type {
#define MESSAGE(name, ...) MESSAGE_##name,
#include "fill/messages.def"
#undef MESSAGE
    MESSAGE_COUNT_
};

// Every payload begins with it.
struct fill_message {
    struct message message;
    enum fill_message_type type;
    struct fill_worker *from;
    struct object_key *key; // reference; NULL where the payload points at what it is about
};

struct ask_message {
    struct fill_message base;
    struct subscription *subscription; // its `ask`; whoever holds the message may change it
};

struct first_message {
    struct fill_message base;
    struct subscription *subscription;
    uint64_t token;
    struct home_given given; // a run of another version that was asked for before it is not adopted
    struct home_redescribed redescribed; // nor is one with an outdated description
};

struct version_message {
    struct fill_message base;
    struct store_object *object; // reference
    uint64_t token;              // version_gone: 0
    uint64_t asked_us;           // when the run's request was sent; version_gone: 0
};

struct first_end_message {
    struct fill_message base;
    uint64_t token;
    enum err err;                      // ERR_OK: there was a head, or no request at all
    struct origin_condition condition; // of a reader, which the error is about; or none
    uint64_t version; // version_hash() of the one that a 304 confirms, a 412 denies; 0: not known
    struct span document; // the origin's error, packed; heap; may be empty
};

struct publish_message {
    struct fill_message base;
    struct fill *fill;
    struct store_object *object; // reference
    struct store_place place;    // borrowed: the run keeps its pin until visible or dropped
    uint64_t first_byte, end_byte;
    uint64_t asked_us;             // when its request was sent
    struct s3_checksum_state *sum; // of these bytes; owned; NULL: none is known
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
    bool joined; // the run was in flight already
    bool whole;  // all of it has come
};

struct head_message {
    struct fill_message base;
    struct subscription *subscription;
    struct store_object *object; // reference
    uint64_t end_byte;
    bool stored, weak;
    unsigned origin_status;
    const char *unstored_why; // static; NULL: it is stored
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
    struct store_place pages; // pinned for the receiver, who unpins it
    uint64_t first_byte;
};

struct final_message {
    struct fill_message base;
    struct subscription *subscription;
    enum subscription_outcome outcome;
    enum err err;
    struct store_place place; // pinned for the receiver, who unpins it; or no segment
    struct span document;     // as above
};

struct place_message {
    struct fill_message base;
    struct subscription *subscription;
    struct store_object *object; // reference
    struct store_place place;    // as above
};

struct again_message {
    struct fill_message base;
    struct subscription *subscription;
};

struct error_message {
    struct fill_message base;
    struct subscription *subscription;
    enum err err;
    struct span document; // as above
};

struct revalidated_message {
    struct fill_message base;
    struct subscription *subscription;
    enum subscription_outcome outcome;
    enum err err;
    struct store_object *object; // reference; NULL unless another version was found
    uint64_t validated_us; // the home knew it, from a request that was sent then; 0: asked now
    struct span document;  // as above
};

// Zeroed but for its base; takes a reference to the key, which may be NULL.
struct fill_message *message_new(struct fill_worker *from, enum fill_message_type type,
                                 struct object_key *key);
void message_send(struct fill_worker *to, struct fill_message *message);
void message_release(struct fill_message *message); // with what the receiver has not taken
// For a message's document: a copy on the heap; empty when memory is short.
struct span message_document(struct span s);

// message_route_new() and so on make one of their own type, with each receiver's declaration.
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

// message_dispatch.c: calls the receiver, releases the message.
void message_dispatch(struct worker *to, struct message *delivered);

#endif
