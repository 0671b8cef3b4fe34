// SPDX-License-Identifier: Apache-2.0
// Any bytes as a configuration file: no crash. It is refused with a complaint, or every setting in
// it has a text and a source.
#include "config/config.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char path[64], option[] = "-c";
    char *argv[] = {option, path, NULL};
    int fd = memfd_create("config", MFD_CLOEXEC);
    check(fd >= 0);
    check(write(fd, bytes, len) == (ssize_t)len);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    struct config *config = NULL;
    struct buf errors;
    buf_init(&errors, 1 << 20);
    if (config_load(2, argv, &config, &errors) == ERR_OK) {
        for (unsigned i = 0; i < config_setting_count(); i++) {
            check(config_value_text(config, i) != NULL && config_source_text(config, i) != NULL);
        }
        config_free(config);
    } else {
        check(errors.len > 0);
    }
    buf_done(&errors);
    close(fd);
    return 0;
}
