// SPDX-License-Identifier: Apache-2.0
// Credential sets, and helper functions that the sources share. Any thread. Reading a file blocks.
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "origin/credentials_chain.h"

struct credentials_set *credentials_set_new(const char *source, struct span access_key,
                                            struct span secret_key, struct span session_token,
                                            int64_t expires_at_s)
{
    struct credentials_set *set = calloc(1, sizeof(*set));
    check(set != NULL);
    atomic_init(&set->refs, 1);
    set->source = source;
    set->expires_at_s = expires_at_s;
    set->is_anonymous = access_key.len == 0;
    set->memory_len = access_key.len + secret_key.len + session_token.len + 1;
    set->memory = calloc(1, set->memory_len);
    check(set->memory != NULL);
    struct span *parts[] = {&set->keys.access_key, &set->keys.secret_key, &set->keys.session_token};
    const struct span from[] = {access_key, secret_key, session_token};
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (from[i].len > 0) {
            memcpy(set->memory + at, from[i].ptr, from[i].len);
        }
        *parts[i] = (struct span){set->memory + at, from[i].len};
        at += from[i].len;
    }
    return set;
}

struct credentials_set *credentials_set_ref(struct credentials_set *set)
{
    check(atomic_fetch_add_explicit(&set->refs, 1, memory_order_relaxed) > 0);
    return set;
}

void credentials_set_unref(struct credentials_set *set)
{
    if (set == NULL || atomic_fetch_sub_explicit(&set->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    OPENSSL_cleanse(set->memory, set->memory_len);
    free(set->memory);
    free(set->region);
    free(set);
}

bool credentials_set_same_keys(const struct credentials_set *a, const struct credentials_set *b)
{
    return a->memory_len == b->memory_len && a->keys.access_key.len == b->keys.access_key.len &&
           a->keys.secret_key.len == b->keys.secret_key.len &&
           CRYPTO_memcmp(a->memory, b->memory, a->memory_len) == 0;
}

bool credentials_set_is_expired(const struct credentials_set *set, int64_t now_s)
{
    return set->expires_at_s != 0 && now_s >= set->expires_at_s && !set->is_extendable;
}

void credentials_buf_done(struct buf *b)
{
    if (b->ptr != NULL) {
        OPENSSL_cleanse(b->ptr, b->cap);
    }
    buf_done(b);
}

enum err credentials_read_file(const char *path, struct buf *ret_text)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return error_from_errno(errno);
    }
    enum err err = ERR_OK;
    while (err == ERR_OK) {
        char piece[4096];
        ssize_t got = read(fd, piece, sizeof(piece));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            err = got < 0 ? error_from_errno(errno) : ERR_OK;
            break;
        }
        buf_append(ret_text, piece, (size_t)got);
        err = buf_ok(ret_text) ? ERR_OK : ERR_LIMIT;
    }
    (void)close(fd);
    return err;
}

struct span credentials_trim_lines(struct span s)
{
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[s.len - 1]) != NULL) {
        s.len--;
    }
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[0]) != NULL) {
        s.ptr++;
        s.len--;
    }
    return s;
}
