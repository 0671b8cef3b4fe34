// SPDX-License-Identifier: Apache-2.0
// Parsers of expat whose memory has a limit. Every parser in this program is one of them.
//
// expat keeps each name of an element or an attribute until its parser is freed, so a document of
// different names takes many times its own length. Its functions for memory get no context. So each
// block begins with a head that names the parser, and while a parser may allocate, the variable
// `current` of its thread names it.
#include "base/chunk.h"
#include "s3/s3_private.h"

#include <stdlib.h>

#define READ_STEP_BYTES (16u << 10) // expat copies each piece into a buffer of its own

struct head {
    _Alignas(max_align_t) struct s3_xml_parser *parser;
    size_t size_bytes; // with the head
};

static _Thread_local struct s3_xml_parser *current;

// Returns true if the parser may have this block, in place of one of `former_bytes`.
static bool take(struct s3_xml_parser *parser, size_t former_bytes, size_t size)
{
    size_t others = parser->used_bytes - former_bytes;
    if (size > S3_XML_PARSER_MAX || others + sizeof(struct head) + size > S3_XML_PARSER_MAX) {
        parser->is_full = true;
        return false;
    }
    parser->used_bytes = others + sizeof(struct head) + size;
    return true;
}

static void *block_new(size_t size)
{
    check(current != NULL);
    if (!take(current, 0, size)) {
        return NULL;
    }
    struct head *head = malloc(sizeof(*head) + size);
    check(head != NULL);
    *head = (struct head){.parser = current, .size_bytes = sizeof(*head) + size};
    return head + 1;
}

static void *block_resize(void *block, size_t size)
{
    if (block == NULL) {
        return block_new(size);
    }
    struct head *head = (struct head *)block - 1;
    if (!take(head->parser, head->size_bytes, size)) {
        return NULL;
    }
    head = realloc(head, sizeof(*head) + size);
    check(head != NULL);
    head->size_bytes = sizeof(*head) + size;
    return head + 1;
}

static void block_free(void *block)
{
    if (block != NULL) {
        struct head *head = (struct head *)block - 1;
        check(head->parser->used_bytes >= head->size_bytes);
        head->parser->used_bytes -= head->size_bytes;
        free(head);
    }
}

void s3_xml_parser_init(struct s3_xml_parser *parser, const char *encoding, const char *separator)
{
    static const XML_Memory_Handling_Suite memory = {block_new, block_resize, block_free};
    *parser = (struct s3_xml_parser){.is_full = false};
    check(current == NULL);
    current = parser;
    parser->expat = XML_ParserCreate_MM(encoding, &memory, separator);
    current = NULL;
    check(parser->expat != NULL);
}

bool s3_xml_parser_feed(struct s3_xml_parser *parser, struct span piece, bool is_last)
{
    check(current == NULL);
    current = parser;
    enum XML_Status status = XML_Parse(parser->expat, piece.ptr, (int)piece.len, is_last);
    current = NULL;
    return status == XML_STATUS_OK;
}

void s3_xml_parser_done(struct s3_xml_parser *parser)
{
    XML_ParserFree(parser->expat);
    check(parser->used_bytes == 0);
}

enum err s3_xml_parser_read(struct s3_xml_parser *parser, struct span document, const enum err *err)
{
    // Steps, so that a stop by a handler takes effect soon, and no length exceeds an int.
    bool is_last = false, is_good = true;
    chunk_budget_charge(BUDGET_BODIES, S3_XML_PARSER_MAX);
    while (!is_last && is_good) {
        struct span piece = {document.ptr, min_u64(document.len, READ_STEP_BYTES)};
        document = span_after(document, piece.len);
        is_last = document.len == 0;
        is_good = s3_xml_parser_feed(parser, piece, is_last);
    }
    enum err own = is_good ? ERR_OK : parser->is_full ? ERR_XML_TOO_LARGE : ERR_MALFORMED_XML;
    s3_xml_parser_done(parser);
    chunk_budget_discharge(BUDGET_BODIES, S3_XML_PARSER_MAX);
    return *err != ERR_OK ? *err : own;
}
