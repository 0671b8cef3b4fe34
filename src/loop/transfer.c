// SPDX-License-Identifier: Apache-2.0
#include "loop/transfer_private.h"
#include <curl/curl.h>
void transfer_library_init(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}
