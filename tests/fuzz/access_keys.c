// SPDX-License-Identifier: Apache-2.0
// Any bytes as a keys file: no crash. The file is refused with a complaint, or every principal in
// it can be found.
#include "auth/auth.h"
#include "s3/s3.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char path[64];
    int fd = memfd_create("keys", MFD_CLOEXEC);
    check(fd >= 0);
    check(fchmod(fd, 0600) == 0);
    check(write(fd, bytes, len) == (ssize_t)len);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct access_keys *c = NULL;
    struct buf errors;
    buf_init(&errors, 1 << 16);
    if (access_keys_load(path, &c, &errors) == ERR_OK) {
        check(errors.len == 0);
        const struct access_keys_principal *p = access_keys_find(c, SPAN("a"));
        check(p == NULL || p->secret.len > 0);
        const struct s3_effect read = {S3_ALLOW_READ, S3_SCOPE_KEY, SPAN("b"), SPAN("k"), false};
        check(p == NULL || p->allow_count > 0 || !access_keys_allowed(p, &read));
    } else {
        check(errors.len > 0);
    }
    access_keys_unref(c);
    buf_done(&errors);
    close(fd);
    return 0;
}
