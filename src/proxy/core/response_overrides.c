// SPDX-License-Identifier: Apache-2.0
// Applies response-content-type and similar query parameters, which replace headers of a successful
// answer to GetObject and HeadObject. As in S3, only signed requests may use them. Forebay applies
// them if it writes the answer's head itself. Otherwise the origin does, because the parameters are
// forwarded to it. Pure; any thread.
#include "proxy/core/core.h"

static const struct {
    const char *param, *header;
} OVERRIDES[] = {
    {"response-content-type", "Content-Type"},
    {"response-content-language", "Content-Language"},
    {"response-expires", "Expires"},
    {"response-cache-control", "Cache-Control"},
    {"response-content-disposition", "Content-Disposition"},
    {"response-content-encoding", "Content-Encoding"},
};

enum err response_overrides_judge(const struct request *r, struct span *ret_message)
{
    bool is_signed = r->s3.presigned || headers_count(&r->http->headers, SPAN("Authorization")) > 0;
    if (!r->s3.has_response_overrides || is_signed) {
        return ERR_OK;
    }
    *ret_message =
        SPAN("Request specific response headers cannot be used for anonymous GET requests.");
    return ERR_INVALID;
}

void response_overrides_apply(struct request *r, struct headers *headers)
{
    for (size_t i = 0; r->s3.has_response_overrides && i < ARRAY_LEN(OVERRIDES); i++) {
        const struct s3_param *param = s3_param_find(&r->s3, OVERRIDES[i].param);
        check(r->arena != NULL && headers->count <= HEADERS_MAX);
        // If no header line can hold the value, the object's own header stays.
        if (param != NULL && headers_value_is_clean(param->value)) {
            headers_remove(headers, span_from_cstr(OVERRIDES[i].header));
            request_header(r, headers, OVERRIDES[i].header, param->value);
        }
    }
}
