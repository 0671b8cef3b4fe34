// SPDX-License-Identifier: Apache-2.0
// The only file that is compiled again when the revision changes.
#include "base/version.h"

const char *version_text(void)
{
    return FOREBAY_VERSION_TEXT;
}

const char *version_revision(void)
{
    return FOREBAY_REVISION;
}

const char *version_build(void)
{
    return FOREBAY_BUILD_KIND;
}

const char *version_date(void)
{
    return FOREBAY_DATE;
}
