// SPDX-License-Identifier: Apache-2.0
// The profile that AWS_PROFILE chooses in the shared credentials and config files of the AWS SDKs.
// Reads files, so no worker calls it.
#ifndef FOREBAY_ORIGIN_SHARED_PROFILE_H
#define FOREBAY_ORIGIN_SHARED_PROFILE_H

#include "base/bytes.h"
#include "base/error.h"

struct shared_profile {
    struct buf credentials_text, config_text;
    struct span name;
    bool is_chosen;          // AWS_PROFILE names it; otherwise it is "default"
    const char *config_kind; // the word before the name in the config file's section: "profile"
};

// Reads both files. A missing file is empty. On ERR_PERMISSION, ret_why has one line, and the
// profile has what could be read. The caller calls shared_profile_done() in any case.
enum err shared_profile_read(struct shared_profile *p, struct buf *ret_why);
void shared_profile_done(struct shared_profile *p); // wipes the bytes
// Finds a setting of the profile: in the credentials file, else in the config file. The result
// points into the profile.
bool shared_profile_value(const struct shared_profile *p, const char *name, struct span *ret_value);
// Finds a setting of a service in the `services` section that the profile names.
bool shared_profile_service_value(const struct shared_profile *p, const char *service,
                                  const char *name, struct span *ret_value);

// A section "[kind name]" or, if kind is NULL, "[name]". Quotes around the name are optional.
struct shared_profile_section {
    const char *kind;
    struct span name;
};
bool shared_profile_has_section(struct span text, struct shared_profile_section section);
// Finds the next section "[kind name]" of an INI text. Shortens the text to what follows its line.
bool shared_profile_next_section(struct span *text, const char *kind, struct span *ret_name);
// Finds `name` in a section of an INI text. If `outer` is set, finds it among the indented lines
// below "outer =" instead. Returns false if there is none, or if it is empty.
bool shared_profile_section_value(struct span text, struct shared_profile_section section,
                                  const char *outer, const char *name, struct span *ret_value);

#endif
