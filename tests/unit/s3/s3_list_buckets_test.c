// SPDX-License-Identifier: Apache-2.0
// A list of buckets shows the buckets that the client may see, and nothing of the others, in
// whatever pieces it comes.
#include "test.h"

#include "s3/s3.h"

#define HEAD                                                                                       \
    "<ListAllMyBucketsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"                   \
    "<Owner><ID>a&amp;b</ID></Owner><Buckets>"
#define TAIL "</Buckets><ContinuationToken>bmV4dA==</ContinuationToken></ListAllMyBucketsResult>"
#define BUCKET(name) "<Bucket><Name>" name "</Name><CreationDate>2024</CreationDate></Bucket>"
#define DECLARATION "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"

static bool may_show(void *ctx, struct span name)
{
    (void)ctx;
    return span_starts_with(name, SPAN("mine"));
}

// Returns true if the document is a list of buckets. `out` gets what is shown of it.
static bool filter(struct span document, size_t step, struct buf *out)
{
    struct s3_list_buckets *list = s3_list_buckets_new(may_show, NULL);
    bool ok = true;
    while (document.len > 0 && ok) {
        struct span shown;
        size_t taken = document.len < step ? document.len : step;
        ok = s3_list_buckets_feed(list, (struct span){document.ptr, taken}, &shown);
        buf_append_span(out, shown);
        document.ptr += taken;
        document.len -= taken;
    }
    ok = ok && s3_list_buckets_end(list);
    s3_list_buckets_free(list);
    return ok;
}

static void shows(const char *document, const char *shown)
{
    for (size_t step = 1; step < 400; step += 7) {
        struct buf out;
        buf_init(&out, 1 << 20);
        cr_assert(filter(span_from_cstr(document), step, &out), "%s in steps of %zu", document,
                  step);
        cr_assert_str_eq(buf_cstr(&out), shown);
        buf_done(&out);
    }
}

Test(s3_list_buckets, shows_the_buckets_that_the_client_may_see_and_all_else)
{
    shows(HEAD BUCKET("mine") BUCKET("theirs") BUCKET("mine-too") TAIL,
          DECLARATION HEAD BUCKET("mine") BUCKET("mine-too") TAIL);
    shows(" \r\n" DECLARATION HEAD BUCKET("theirs") TAIL, DECLARATION HEAD TAIL);
    shows(HEAD BUCKET("&#109;ine") "<!-- theirs -->" BUCKET("<![CDATA[mine]]>") TAIL,
          DECLARATION HEAD BUCKET("mine") BUCKET("mine") TAIL);
    shows("<s:ListAllMyBucketsResult xmlns:s=\"x\"><s:Buckets><s:Bucket><s:Name>theirs</s:Name>"
          "</s:Bucket></s:Buckets></s:ListAllMyBucketsResult>",
          DECLARATION "<s:ListAllMyBucketsResult xmlns:s=\"x\"><s:Buckets></s:Buckets>"
                      "</s:ListAllMyBucketsResult>");
}

Test(s3_list_buckets, hides_an_entry_whose_name_is_not_plain)
{
    shows(HEAD "<Bucket><Name>theirs</Name><Name>mine</Name></Bucket>"
               "<Bucket><CreationDate>mine</CreationDate></Bucket><Mine><X>mine</X></Mine>" TAIL,
          DECLARATION HEAD TAIL);
}

static void refuses(struct span document)
{
    struct buf out;
    buf_init(&out, 1 << 22);
    cr_assert(!filter(document, S3_LIST_BUCKETS_PIECE, &out), "%.80s", document.ptr);
    cr_assert(span_find_text(buf_span(&out), SPAN("theirs")) == out.len);
    buf_done(&out);
}

Test(s3_list_buckets, refuses_what_is_no_whole_list)
{
    refuses(SPAN(""));
    refuses(SPAN(HEAD BUCKET("theirs")));
    refuses(SPAN("<Bucket><Name>theirs</Name></Bucket>"));
    refuses(SPAN("<!DOCTYPE x [<!ENTITY a \"theirs\">]>" HEAD BUCKET("&a;") TAIL));
    refuses(SPAN("\x1f\x8b\x08 theirs"));
}

// Repeats `text` in a document of `bytes` bytes.
static void begin_long(struct buf *document, const char *head, const char *text, size_t bytes)
{
    buf_init(document, 1 << 22);
    buf_append_cstr(document, head);
    while (document->len < bytes) {
        buf_append_cstr(document, text);
    }
}

Test(s3_list_buckets, refuses_elements_beyond_its_memory)
{
    static const char *const heads[][2] = {{HEAD "<Bucket><Name>theirs", "x"},
                                           {HEAD "<Bucket a=\"theirs", "x"},
                                           {HEAD "<!-- theirs", "x"},
                                           {HEAD, "<x>"}};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        struct buf document;
        begin_long(&document, heads[i][0], heads[i][1], 200000);
        refuses(buf_span(&document));
        buf_done(&document);
    }
}

// expat keeps each name that it has not seen before.
Test(s3_list_buckets, refuses_a_document_of_different_names_before_they_take_much_memory)
{
    static const char *const forms[][2] = {
        {"<n", "/>"}, {"<Bucket n", "='x'/>"}, {"<Bucket><n", "/></Bucket>"}};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct s3_list_buckets *list = s3_list_buckets_new(may_show, NULL);
        struct span shown;
        struct buf piece;
        unsigned count = 0;
        buf_init(&piece, 1024);
        bool ok = s3_list_buckets_feed(list, SPAN(HEAD), &shown);
        while (ok && count < 100000) {
            piece.len = 0;
            buf_printf(&piece, "%s%u%s", forms[i][0], count++, forms[i][1]);
            ok = s3_list_buckets_feed(list, buf_span(&piece), &shown);
        }
        cr_assert(!ok && s3_list_buckets_is_full(list), "form %zu: %u", i, count);
        cr_assert(count > 500, "form %zu: %u", i, count);
        buf_done(&piece);
        s3_list_buckets_free(list);
    }
}

Test(s3_list_buckets, has_no_limit_on_the_number_of_buckets)
{
    struct buf document, out;
    begin_long(&document, HEAD, BUCKET("theirs") BUCKET("mine"), 2000000);
    buf_append_cstr(&document, TAIL);
    buf_init(&out, 1 << 22);
    cr_assert(filter(buf_span(&document), S3_LIST_BUCKETS_PIECE, &out));
    cr_assert(out.len > 900000 && out.len < 1000000);
    cr_assert(span_find_text(buf_span(&out), SPAN("theirs")) == out.len);
    buf_done(&out);
    buf_done(&document);
}
