// SPDX-License-Identifier: Apache-2.0
// Identifies the client of a request, for the access log and for taking turns at the origin.
#include "base/hash.h"
#include "proxy/core/core.h"

struct span request_address(const struct request *r)
{
    struct span address = r->http->peer;
    for (size_t i = address.len; i > 0; i--) {
        if (address.ptr[i - 1] == ':') {
            address.len = i - 1;
            break;
        }
    }
    return address;
}

uint64_t request_client(const struct request *r)
{
    check(r->http != NULL);
    struct span address = request_address(r), name = r->principal.name;
    return hash64(address.ptr, address.len, hash64(name.ptr, name.len, 0));
}
