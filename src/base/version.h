// SPDX-License-Identifier: Apache-2.0
// Name, revision and build kind of this binary.
#ifndef FOREBAY_BASE_VERSION_H
#define FOREBAY_BASE_VERSION_H

const char *version_text(void);     // "0.1.0" at the tag v0.1.0, "0.1.0-dev" elsewhere
const char *version_revision(void); // git revision or "unknown"
const char *version_build(void);    // build kind
const char *version_date(void);     // of the revision: "November 3, 2026"

#endif
