// SPDX-License-Identifier: Apache-2.0
// What the worker asks of transfer.c.
#ifndef FOREBAY_LOOP_TRANSFER_PRIVATE_H
#define FOREBAY_LOOP_TRANSFER_PRIVATE_H

void transfer_library_init(
    void); // libcurl's global state, once a process; before other threads exist

#endif
