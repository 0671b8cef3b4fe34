// SPDX-License-Identifier: Apache-2.0
// The checksums that an origin names for whole objects: how Forebay learns them, where it keeps
// them, and when it compares bytes with them.
//
// Learnt. S3 names an object's checksums in answers to HEAD and to GET of a whole object, but not
// to GET of a range. So Forebay learns them
//   with the first run    if it is requested without a range, or if a HEAD is sent at the same
//                         time (fill_describe.c)
//   with a confirmation   because every revalidation is a HEAD (home_revalidate.c)
//   with a separate HEAD  which the home sends if a reader wanted checksums and got bytes without
//                         them. No reader waits for it, and checksums_learn_claim() and
//                         checksums_learn_may_ask() limit such HEADs. A client's HEAD and a warm
//                         job do wait for a HEAD of their own.
//
// Kept. They are the last lines of a version's headers, because only some replies may have them.
// If the origin was asked and has none, a line that is never sent says so. Each stored run has the
// lines that were known when it was fetched. The version's index record has them in packed form,
// unless every reply finds them in the headers anyway (checksums_of_run()). If they are too long
// for the index record, only the origin can name them.
//
// Verified (checksums_verify.c).
//   a run that is the whole object    before any reader gets its last byte: checksums_run_judge()
//   a stored object of several runs   by its home, when its last run is written:
//                                     checksums_object_add()
//   a reply of several runs           before its last bytes are sent: checksums_reply_is_wrong()
#ifndef FOREBAY_FILL_CHECKSUMS_H
#define FOREBAY_FILL_CHECKSUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "s3/s3.h"
#include "store/store.h"

struct fill;
struct fill_worker;
struct object_key;
struct origin;
struct origin_fetch;

// --- what is known; pure -------------------------------------------------------------------------

enum checksums_known {
    CHECKSUMS_UNKNOWN,  // nobody has asked the origin
    CHECKSUMS_TOO_LONG, // too long for the index record; only the origin can name them
    CHECKSUMS_NONE,     // the origin names none
    CHECKSUMS_KNOWN
};
// Returns what is known of a version's checksums from its headers or, if these name none, from its
// index record. NULL: there is no record.
enum checksums_known checksums_known(struct span headers, const struct store_sums *record);
// Returns the checksum lines of the headers. Empty: the headers have no such line. A line may say
// that the object has no checksums.
struct span checksums_lines(struct span headers);
// Returns the checksums of an index record as header lines. Empty: the record has none. `record`
// may be NULL.
struct span checksums_render(const struct store_sums *record, char ret_text[S3_SUMS_TEXT_MAX]);
// Appends the checksum lines of an answer or, if it has none, those of `known`. `known` describes
// the same version; NULL: nothing is known. If neither has any, although such an answer of this
// origin would name checksums, appends the line that says that the object has none.
void checksums_append(struct buf *out, const struct origin *origin, const struct origin_fetch *f,
                      const struct store_object *known);
// Returns true if `known` describes the same version and size as `object` and names checksums.
// False if `known` is NULL.
bool checksums_are_named(const struct store_object *known, const struct store_object *object);
// Returns the headers' checksums, packed for the index record. A len of 0: the record gets none.
struct store_sums checksums_of(const struct store_object *object);
// Returns the checksums for the index record when this run of a version is published. `described`
// is another description, maybe of the same version; or NULL.
struct store_sums checksums_of_run(const struct store_object *object, uint64_t first_byte,
                                   uint64_t end_byte, const struct store_object *described);
// Returns the checksums that the answer `found` names, for the index record of an object of
// `size_bytes`.
struct store_sums checksums_learnt(const struct store_object *found, uint64_t size_bytes);

// --- HEADs that learn the checksums of stored objects --------------------------------------------

// Decides whether a hit asks the key's home to learn the checksums of `object` for later readers.
// If true, the caller now asks the home with FILL_ASK_CHECKSUMS. Until the home has answered, other
// hits of the version get false. Allocates nothing, takes no lock and sends no message.
bool checksums_learn_claim(struct fill_worker *fw, const struct object_key *key,
                           const struct store_object *object) MUST_USE;
// Call it when the home has answered the ask that checksums_learn_claim() allowed.
void checksums_learn_release(struct fill_worker *fw, const struct object_key *key,
                             const struct store_object *object);
// Returns true if one more HEAD that no client waits for may be sent to the origin. If not, counts
// the refusal in the statistics.
bool checksums_learn_may_ask(struct fill_worker *fw, const struct origin *origin) MUST_USE;
// Call it when a HEAD that no client waits for is sent.
void checksums_learn_begin(struct fill_worker *fw);
// Call it when the HEAD has ended. A failure pauses all HEADs to its origin that no client waits
// for.
void checksums_learn_end(struct fill_worker *fw, const struct origin *origin, bool has_failed);

// --- a run (checksums_verify.c); on its owner's worker -------------------------------------------

void checksums_run_begin(struct fill *fill); // call it when the head is accepted
// Adds the next bytes of the run to its sum. Call it before these bytes count as received.
void checksums_run_take(struct fill *fill, struct span data);
// Call it when the whole run has come, and deliver its last bytes afterwards. Sets the verdict,
// unless it is already set or the run has no sum.
void checksums_run_judge(struct fill *fill);
void checksums_run_drop(struct fill *fill); // drops the run's sum: it is not needed, or wrong

// --- a stored object in several runs; on its home's worker ---------------------------------------

// Adds the sum of one run. Takes ownership of `sum`, whose kind must be combinable; NULL is fine.
// Returns false if all of the object's runs are added and the result is not the origin's checksum.
bool checksums_object_add(struct fill_worker *fw, const struct object_key *key,
                          const struct store_object *object, uint64_t first_byte, uint64_t end_byte,
                          struct s3_checksum_state *sum) MUST_USE;
void checksums_objects_free(struct fill_worker *fw);
// Records that the object is wrong, so that replies in progress are cut.
void checksums_condemn(struct fill_worker *fw, const struct store_object *object);

// --- a reply of several runs; any worker ---------------------------------------------------------

// The checksum of a reply's bytes, from the object's first byte on. Zero the struct, then call
// checksums_reply_begin().
struct checksums_reply {
    uint64_t verdicts; // the key's verdict counter when the reply began
    bool has_kind;
    enum s3_checksum kind;
    struct s3_checksum_state *sum; // checksum of the object's bytes below end_byte
    uint64_t end_byte;
};
// Notes how many verdicts on the key there have been, so that a later one cuts the reply. Call it
// before the reply looks for any of the object's bytes.
void checksums_reply_begin(struct fill_worker *fw, struct hash128 key_hash,
                           struct checksums_reply *total);
// Call it when the reply has all bytes below `end_byte`, and send the last of them only if this
// returns false. Returns true if the reply has the whole object and its checksum is not the
// origin's; counts and logs that. Returns false if the checksum is not known.
bool checksums_reply_is_wrong(struct fill_worker *fw, const struct store_object *object,
                              struct checksums_reply *total, uint64_t end_byte) MUST_USE;
void checksums_reply_done(struct checksums_reply *total); // a zeroed struct is fine

#endif
