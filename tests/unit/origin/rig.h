// SPDX-License-Identifier: Apache-2.0
// An origin over the scripted server, with keys from the environment: the rig of the tests that
// speak HTTP. Between rig_options() and rig_begin() a test changes `options`.
#ifndef FOREBAY_TESTS_UNIT_ORIGIN_RIG_H
#define FOREBAY_TESTS_UNIT_ORIGIN_RIG_H

#include "harness.h"
#include "server.h"

struct rig {
    struct server server;
    struct harness h; // two workers
    struct origin_options options;
};

void rig_options(struct rig *rig, const struct server_row *rows, unsigned row_count);
void rig_begin(struct rig *rig);
void rig_start(struct rig *rig, const struct server_row *rows, unsigned row_count); // both
void rig_end(struct rig *rig);
// Does the i-th request hold this text?
bool rig_asked(struct rig *rig, unsigned i, const char *text);
bool rig_asked_nocase(struct rig *rig, unsigned i, const char *text);
// Returns an answer with this body; `headers` are whole lines. The caller frees it.
char *rig_answer(const char *status, const char *headers, const char *body);

#endif
