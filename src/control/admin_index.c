// SPDX-License-Identifier: Apache-2.0
// GET /: the page for people, from the files in page/, which are part of the binary. The page is
// isolated: it may run only its own script and style, which it names by hash, and may send requests
// only to this server. Runs on the admin thread.
#include "control/admin_private.h"

#include <openssl/evp.h>
#include <string.h>

#define SHA256_BYTES 32
#define HASH_TEXT (4 * ((SHA256_BYTES + 2) / 3) + 1)

// Embeds the files as one page, and appends a zero byte. The build defines ADMIN_PAGE_FOLDER.
__asm__(".pushsection .rodata\n"
        "admin_index_html:\n"
        ".incbin \"" ADMIN_PAGE_FOLDER "/page.html\"\n"
        ".ascii \"<script>\\n\"\n"
        ".incbin \"" ADMIN_PAGE_FOLDER "/page.js\"\n"
        ".incbin \"" ADMIN_PAGE_FOLDER "/charts.js\"\n"
        ".incbin \"" ADMIN_PAGE_FOLDER "/details.js\"\n"
        ".ascii \"</script>\\n</body>\\n</html>\\n\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char admin_index_html[] __attribute__((visibility("hidden")));

// Hashes the text between `begin` and `end`, and encodes the hash in base64.
static void hash_between(const char *begin, const char *end, char ret_text[HASH_TEXT])
{
    unsigned char hash[SHA256_BYTES];
    const char *from = strstr(admin_index_html, begin);
    check(from != NULL);
    from += strlen(begin);
    const char *to = strstr(from, end);
    check(to != NULL);
    check(EVP_Digest(from, (size_t)(to - from), hash, NULL, EVP_sha256(), NULL) == 1);
    check(EVP_EncodeBlock((unsigned char *)ret_text, hash, SHA256_BYTES) == HASH_TEXT - 1);
}

void admin_page_index(struct admin *admin, struct evhttp_request *req)
{
    char style[HASH_TEXT], script[HASH_TEXT];
    struct buf policy;
    (void)admin;
    hash_between("<style>", "</style>", style);
    hash_between("<script>", "</script>", script);
    buf_init(&policy, 1024);
    buf_printf(&policy,
               "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; "
               "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
               "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
               style, script);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    check(evhttp_add_header(headers, "Content-Security-Policy", buf_cstr(&policy)) == 0);
    check(evhttp_add_header(headers, "Referrer-Policy", "no-referrer") == 0);
    buf_done(&policy);
    admin_reply_text(req, HTTP_OK, "text/html; charset=utf-8", span_from_cstr(admin_index_html));
}
