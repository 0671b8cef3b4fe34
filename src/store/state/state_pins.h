// SPDX-License-Identifier: Apache-2.0
// Pins that operators set while the process runs, on disk: see state_pins.c.
#ifndef FOREBAY_STORE_STATE_STATE_PINS_H
#define FOREBAY_STORE_STATE_STATE_PINS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/bytes.h"
#include "store/disk/disk.h"

struct store_pins {
    struct store_disk *disk;
    _Atomic uint64_t bytes;      // of the file, as counted in used_bytes
    _Atomic uint64_t bytes_then; // of the one that was there at the start, which other_bytes has
    atomic_bool is_unread;       // it is not to be replaced: store_late.c
};

void state_pins_init(struct store_pins *pins, struct store_disk *disk); // zeroed before
// At the opening, behind the look at what else the directory holds.
void state_pins_open(struct store_pins *pins);
// The file is not to be replaced by this process.
void state_pins_set_unread(struct store_pins *pins);
// Bytes of cache.size in use now, without those that were on disk at the start. Any thread.
int64_t state_pins_bytes(const struct store_pins *pins);
// As store_pins_load() and the calls behind it.
enum err state_pins_load(struct store_pins *pins, struct buf *ret_text) MUST_USE;
void state_pins_put_aside(struct store_pins *pins, const char *why);
enum err state_pins_save(struct store_pins *pins, struct span text, struct buf *ret_why) MUST_USE;

#endif
