// SPDX-License-Identifier: Apache-2.0
// Changes of the index with an answer when they are durable.
#include "store/store_private.h"

static void on_post_known(struct worker *to, struct message *message)
{
    (void)to;
    struct store_post *post = container_of(message, struct store_post, message);
    post->done(post);
}

static void on_post_deleted(struct store_delete *d)
{
    struct store_post *post = container_of(d, struct store_post, deletion);
    post->err = d->err;
    post->done(post);
}

void store_post(struct worker *w, struct store_post *post)
{
    struct store *store = post->store;
    check(store != NULL);
    post->worker = w;
    if (post->kind == STORE_POST_DELETE) {
        post->deletion = (struct store_delete){
            .hash = post->hash, .floor = post->floor, .done = on_post_deleted};
        store_delete(w, store, &post->deletion);
        return;
    }
    if (!store->attached) {
        post->err = ERR_IO;
        post->message.deliver = on_post_known;
        mailbox_send(w, &post->message);
        return;
    }
    if (post->kind == STORE_POST_PUT) {
        store_put(w, store, post->object, &post->place, worker_now_us(w));
    }
    worker_expect(w);
    index_writer_post(&store->writer, post);
}
