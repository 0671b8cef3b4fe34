// SPDX-License-Identifier: Apache-2.0
// The file with the pins that operators set while the process runs. See state_pins.c.
#ifndef FOREBAY_STORE_STATE_STATE_PINS_H
#define FOREBAY_STORE_STATE_STATE_PINS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/bytes.h"
#include "store/disk/disk.h"

struct store_pins {
    struct store_disk *disk;
    _Atomic uint64_t bytes; // disk usage of the file, included in used_bytes
    // Disk usage of the file that existed at the start, included in other_bytes.
    _Atomic uint64_t bytes_then;
    // This process has not read the existing file, so it must not replace it. See store_late.c.
    atomic_bool is_unread;
};

// The caller has zeroed *pins.
void state_pins_init(struct store_pins *pins, struct store_disk *disk);
// Measures the existing file. Called when the store opens, after other_bytes was measured.
void state_pins_open(struct store_pins *pins);
// Forbids this process to replace the file if one existed at the start.
void state_pins_set_unread(struct store_pins *pins);
// Returns the file's disk usage minus its usage at the start. Any thread.
int64_t state_pins_bytes(const struct store_pins *pins);
// These functions implement store_pins_load() and the calls that follow it in store.h.
enum err state_pins_load(struct store_pins *pins, struct buf *ret_text) MUST_USE;
void state_pins_put_aside(struct store_pins *pins, const char *why);
enum err state_pins_save(struct store_pins *pins, struct span text, struct buf *ret_why) MUST_USE;

#endif
