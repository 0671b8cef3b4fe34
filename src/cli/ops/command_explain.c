// SPDX-License-Identifier: Apache-2.0
// `forebay explain URI`: shows what is cached of an object, which rule applies, and why the cache
// does or does not answer a read of it.
#include "cli/client/command_client.h"

#include <stdio.h>
#include <string.h>

#define PATH_MAX_BYTES 16384u
#define OUTPUT_MAX_BYTES (1u << 20)
#define TEXT_COLUMN 9u // where the text of a line begins

static void append_rule(struct buf *out, const json_t *rule)
{
    const char *freshness = command_client_text(rule, "freshness");
    bool is_ttl = strcmp(freshness, "ttl") == 0;
    buf_printf(out,
               "rule     %s (%s): ", command_client_visible(command_client_text(rule, "match")),
               command_client_visible(command_client_text(rule, "where")));
    if (!command_client_bool(rule, "cache")) { // then the other fields have no meaning
        buf_printf(out, "cache: false\n");
        return;
    }
    double max_object_size = command_client_double(rule, "max_object_size");
    buf_printf(out, "%s%s%s, blocks of %s%s%s\n", freshness, is_ttl ? " " : "",
               is_ttl ? command_time(command_client_double(rule, "ttl_s")) : "",
               command_bytes(command_client_double(rule, "block_size")),
               max_object_size > 0 ? ", max_object_size " : "",
               max_object_size > 0 ? command_bytes(max_object_size) : "");
}

// Appends each cell of the map as cached in full, in part, or not at all.
static void append_map(struct buf *out, const json_t *range)
{
    const json_t *cells = json_object_get(range, "cells");
    buf_printf(out, "map      ");
    for (size_t i = 0; i < json_array_size(cells); i++) {
        const json_t *cell = json_array_get(cells, i);
        json_int_t cached = json_integer_value(json_array_get(cell, 0));
        json_int_t blocks = json_integer_value(json_array_get(cell, 1));
        buf_append_cstr(out, cached == blocks ? "■" : cached > 0 ? "▪" : "□");
    }
    buf_printf(out, "\n");
}

// Appends what the policy does with a piece, in words. `is_full`: nothing is stored without an
// eviction.
static void append_piece(struct buf *out, const json_t *piece, bool is_full)
{
    const char *state = command_client_text(piece, "state");
    bool is_kept = strcmp(state, "kept") == 0, is_refused = strcmp(state, "refused") == 0;
    double worth = command_client_double(piece, "worth"), bar = command_client_double(piece, "bar");
    if (strcmp(state, "unranked") == 0) {
        buf_printf(out, "stored, not judged yet");
    } else if (!is_full) {
        buf_printf(out, "%s: the cache is not full, so it keeps all that is read",
                   is_kept ? "stored" : "the next read stores it");
    } else if (is_refused && worth <= 0) {
        buf_printf(out, "not stored: the cache is full, and no second read of it is known");
    } else if (is_refused) {
        buf_printf(out, "not stored: worth %.0f %% of what would be evicted for it",
                   100 * worth / bar);
    } else if (!is_kept) {
        buf_printf(out, "the next read stores it");
    } else if (bar <= 0) {
        buf_printf(out, "stored");
    } else if (worth <= bar) {
        buf_printf(out, "stored, and among the next to be evicted");
    } else {
        buf_printf(out, "stored, worth %.1f times what is evicted next", worth / bar);
    }
    if (command_client_bool(piece, "pinned")) {
        buf_printf(out, "; pinned, so it stays");
    } else if (command_client_bool(piece, "on_probation")) {
        buf_printf(out, "; on probation: it goes soon unless it is read again");
    }
}

// Appends the piece whose worth exceeds the worth of what is evicted by least.
static void append_policy(struct buf *out, const json_t *policy)
{
    const json_t *pieces = json_object_get(policy, "pieces"), *worst = NULL;
    double least = 0;
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i);
        double above = command_client_double(piece, "worth") - command_client_double(piece, "bar");
        bool is_known = !json_is_null(json_object_get(piece, "age_bytes"));
        if (is_known && (worst == NULL || above < least)) {
            worst = piece;
            least = above;
        }
    }
    if (worst == NULL || !command_client_bool(policy, "learns")) {
        return;
    }
    buf_printf(out, "policy   ");
    append_piece(out, worst, command_client_bool(policy, "full"));
    buf_printf(out, "%s\n", json_array_size(pieces) > 1 ? " (the piece that is worth least)" : "");
}

// Appends how much all objects of the rule use together, if the rule limits that.
static void append_group(struct buf *out, const json_t *rule, const json_t *policy)
{
    bool pin = command_client_bool(rule, "pin");
    if (command_client_bool(policy, "learns") &&
        (pin || command_client_u64(rule, "share_percent") > 0)) {
        buf_printf(out, "%s %s, %s at most\n", pin ? "pins    " : "share   ",
                   command_bytes(command_client_double(policy, "group_bytes")),
                   command_bytes(command_client_double(policy, "group_max_bytes")));
    }
}

static void append_checksums(struct buf *out, const char *known)
{
    const char *text = "unknown; the next reader that wants them makes Forebay ask the origin "
                       "once, without waiting";
    if (strcmp(known, "known") == 0) {
        text = "known; sent with replies of the whole object to clients that request them";
    } else if (strcmp(known, "none") == 0) {
        text = "the origin names none";
    }
    buf_printf(out, "checksum %s\n", text);
}

static void append_oddities(struct buf *out, const json_t *oddities)
{
    for (size_t i = 0; i < json_array_size(oddities); i++) {
        buf_printf(out, "odd      %s\n", command_client_text(json_array_get(oddities, i), "text"));
    }
}

static void append_explanation(struct buf *out, const char *uri, const json_t *e)
{
    const json_t *range = json_object_get(e, "range"), *verdict = json_object_get(e, "verdict");
    bool is_known = command_client_bool(e, "known");
    const char *etag = command_client_text(e, "etag");
    if (is_known) {
        buf_printf(out, "object   %s%s%s, from %s\n",
                   command_bytes(command_client_double(e, "size")),
                   etag[0] != '\0' ? ", etag " : "", command_client_visible(etag),
                   command_client_text(e, "origin"));
    } else {
        double size = command_client_double(e, "size");
        buf_printf(out, "object   %s%snot known here, from %s\n",
                   size > 0 ? command_bytes(size) : "", size > 0 ? ", " : "",
                   command_client_text(e, "origin"));
    }
    append_oddities(out, json_object_get(e, "oddities"));
    append_rule(out, json_object_get(e, "rule"));
    if (is_known) {
        buf_printf(out,
                   "cached   %llu of %llu blocks of this range, %llu of %llu of the object (%s)\n",
                   (unsigned long long)command_client_u64(range, "cached_blocks"),
                   (unsigned long long)command_client_u64(range, "blocks"),
                   (unsigned long long)command_client_u64(e, "cached_blocks"),
                   (unsigned long long)command_client_u64(e, "blocks"),
                   command_bytes(command_client_double(e, "cached_bytes")));
        append_map(out, range);
        bool has_age = !json_is_null(json_object_get(e, "age_s"));
        buf_printf(out, "fresh    %s, %s%s%s\n", command_client_bool(e, "fresh") ? "yes" : "no",
                   has_age ? "confirmed " : "not confirmed yet",
                   has_age ? command_time(command_client_double(e, "age_s")) : "",
                   has_age ? " ago" : "");
        append_checksums(out, command_client_text(e, "checksums"));
    }
    append_policy(out, json_object_get(e, "policy"));
    append_group(out, json_object_get(e, "rule"), json_object_get(e, "policy"));
    buf_printf(out, "verdict  %s: %s\n", command_client_text(verdict, "reason"),
               command_client_text(verdict, "text"));
    if (command_client_text(verdict, "remedy")[0] != '\0') {
        buf_printf(out, "remedy   %s\n", command_client_text(verdict, "remedy"));
    }
    if (!is_known && uri[0] != '\0' && uri[strlen(uri) - 1] == '/') {
        buf_printf(out,
                   "hint     that is the name of one object; forebay ls %s shows those below it\n",
                   command_client_visible(uri));
    }
}

int command_explain(int argc, char **argv)
{
    struct command_client client;
    struct buf path, out;
    const char *range = commands_argument_take_value(&argc, argv, "--range");
    check(argc == 1); // commands.def requires one operand
    int code = command_client_open(&client, "explain");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    buf_init(&path, PATH_MAX_BYTES);
    buf_append_cstr(&path, "/api/v1/explain");
    command_client_parameter(&path, "uri", span_from_cstr(argv[0]));
    command_client_parameter(&path, "ask", SPAN("origin"));
    if (range != NULL) {
        command_client_parameter(&path, "range", span_from_cstr(range));
    }
    json_t *explanation = NULL;
    code = command_client_get(&client, buf_cstr(&path), &explanation);
    if (code == EXIT_CODE_OK && !client.is_json) {
        buf_init(&out, OUTPUT_MAX_BYTES);
        append_explanation(&out, argv[0], explanation);
        command_screen_print(TEXT_COLUMN, "%s", buf_cstr(&out));
        buf_done(&out);
    }
    buf_done(&path);
    return command_client_end(&client, code, explanation);
}
