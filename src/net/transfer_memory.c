// SPDX-License-Identifier: Apache-2.0
// Allocates memory for curl on workers. A transfer allocates and frees a few dozen pieces of
// memory, among them a receive buffer. With many transfers at once, malloc took a third of the cost
// of a small transfer. So a worker keeps each piece that it frees, for its next allocation of the
// same size class.
//
// Pieces larger than the largest class (128 KiB) come from malloc. So do all pieces of other
// threads, such as curl's threads for name look-ups. Under a sanitizer all pieces come from malloc,
// so that the sanitizer sees each one.
//
// A header before each piece records its class, so that any thread can free the piece.
#include <curl/curl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "net/transfer_private.h"

#define CLASS_BYTES_MIN 64u // Each class is larger than the one before by a half or a third.
#define CLASS_COUNT 23u     // The largest class has 128 KiB.
#define SLACK_BYTES 32u     // Room for the bytes that curl adds to a power of two.
// The most bytes that a thread keeps of one class. The limit for all classes is
// TRANSFER_MEMORY_KEPT_MOST.
#define KEPT_BYTES (512u * 1024)
#define NO_CLASS CLASS_COUNT
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

struct piece {
    union {
        unsigned size_class;
        max_align_t align;
    } head;
    // The next kept piece. While the piece is in use, the caller's bytes begin here.
    struct piece *next;
};
#define HEAD_BYTES offsetof(struct piece, next)

struct kept {
    struct piece *first[CLASS_COUNT];
    unsigned count[CLASS_COUNT];
    size_t bytes;
};

static pthread_key_t kept_key;
static _Thread_local struct kept *kept; // NULL: this thread keeps no pieces.

static size_t class_bytes(unsigned size_class)
{
    size_t power = (size_t)CLASS_BYTES_MIN << (size_class / 2);
    return (size_class % 2 == 0 ? power : power + power / 2) + SLACK_BYTES;
}

// Returns the smallest class whose pieces have room for `bytes`, or NO_CLASS.
static unsigned class_of(size_t bytes)
{
    if (bytes <= CLASS_BYTES_MIN + SLACK_BYTES) {
        return 0;
    }
    // The largest power with 64 << power < bytes, where `bytes` does not count the slack.
    unsigned power = 63u - (unsigned)__builtin_clzll(bytes - SLACK_BYTES - 1) - 6;
    unsigned size_class = 2 * power + 1;
    size_class += bytes > class_bytes(size_class);
    return size_class < CLASS_COUNT ? size_class : NO_CLASS;
}

void *transfer_memory_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    unsigned size_class = class_of(bytes);
    struct piece *piece = NULL;
    if (size_class != NO_CLASS && kept != NULL && (piece = kept->first[size_class]) != NULL) {
        kept->first[size_class] = piece->next;
        kept->count[size_class]--;
        kept->bytes -= class_bytes(size_class);
    } else {
        piece = malloc(HEAD_BYTES + (size_class != NO_CLASS ? class_bytes(size_class) : bytes));
    }
    if (piece == NULL) {
        return NULL;
    }
    piece->head.size_class = size_class;
    return (char *)piece + HEAD_BYTES;
}

static struct piece *piece_of(void *ptr)
{
    return (struct piece *)(void *)((char *)ptr - HEAD_BYTES);
}

static bool has_room(unsigned size_class)
{
    size_t bytes = class_bytes(size_class);
    return kept != NULL && kept->count[size_class] < KEPT_BYTES / bytes &&
           kept->bytes + bytes <= TRANSFER_MEMORY_KEPT_MOST;
}

void transfer_memory_free(void *ptr)
{
    if (ptr == NULL) {
        return;
    }
    struct piece *piece = piece_of(ptr);
    unsigned size_class = piece->head.size_class;
    check(size_class <= NO_CLASS);
    if (size_class == NO_CLASS || !has_room(size_class)) {
        free(piece);
        return;
    }
    piece->next = kept->first[size_class];
    kept->first[size_class] = piece;
    kept->count[size_class]++;
    kept->bytes += class_bytes(size_class);
}

void *transfer_memory_realloc(void *ptr, size_t bytes)
{
    if (ptr == NULL) {
        return transfer_memory_alloc(bytes);
    }
    struct piece *piece = piece_of(ptr);
    unsigned size_class = piece->head.size_class;
    if (size_class == NO_CLASS) {
        if (bytes > SIZE_MAX / 2) {
            return NULL;
        }
        piece = realloc(piece, HEAD_BYTES + max_u64(bytes, CLASS_BYTES_MIN));
        return piece != NULL ? (char *)piece + HEAD_BYTES : NULL;
    }
    size_t has = class_bytes(size_class);
    if (bytes <= has) {
        return ptr;
    }
    void *larger = transfer_memory_alloc(bytes);
    if (larger != NULL) {
        memcpy(larger, ptr, has);
        transfer_memory_free(ptr);
    }
    return larger;
}

static void *on_curl_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        return NULL;
    }
    void *ptr = transfer_memory_alloc(bytes);
    return ptr != NULL ? memset(ptr, 0, bytes) : NULL;
}

static char *on_curl_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = transfer_memory_alloc(bytes);
    return copy != NULL ? memcpy(copy, text, bytes) : NULL;
}

static void kept_free(void *ptr)
{
    struct kept *all = ptr;
    kept = NULL;
    for (unsigned i = 0; i < CLASS_COUNT; i++) {
        struct piece *piece;
        while ((piece = all->first[i]) != NULL) {
            all->first[i] = piece->next;
            free(piece);
        }
    }
    free(all);
}

static void make_key(void)
{
    check(pthread_key_create(&kept_key, kept_free) == 0);
}

void transfer_memory_keep(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    check(pthread_once(&once, make_key) == 0);
    if (kept == NULL) {
        kept = calloc(1, sizeof(*kept));
        check(kept != NULL);
        check(pthread_setspecific(kept_key, kept) == 0);
    }
}

void transfer_memory_init(void)
{
    CURLcode code = SANITIZED ? curl_global_init(CURL_GLOBAL_DEFAULT)
                              : curl_global_init_mem(CURL_GLOBAL_DEFAULT, transfer_memory_alloc,
                                                     transfer_memory_free, transfer_memory_realloc,
                                                     on_curl_strdup, on_curl_calloc);
    check(code == CURLE_OK);
}
