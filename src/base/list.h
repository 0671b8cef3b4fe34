// SPDX-License-Identifier: Apache-2.0
// An intrusive doubly linked list. An object embeds one node for each list that it can be in at a
// time, and the list that the node is in shows the object's state. A node in no list points at
// itself, so list_remove() on it does no harm.
#ifndef FOREBAY_BASE_LIST_H
#define FOREBAY_BASE_LIST_H

#include <stdbool.h>

#include "base/check.h"

struct list_node {
    struct list_node *prev, *next;
};

struct list {
    struct list_node head;
};

static inline void list_node_init(struct list_node *node)
{
    node->prev = node->next = node;
}

static inline void list_init(struct list *list)
{
    list_node_init(&list->head);
}

static inline bool list_empty(const struct list *list)
{
    return list->head.next == &list->head;
}

static inline bool list_node_linked(const struct list_node *node)
{
    return node->next != node;
}

static inline void list_insert_before(struct list_node *at, struct list_node *node)
{
    check(!list_node_linked(node));
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

static inline void list_push_back(struct list *list, struct list_node *node)
{
    list_insert_before(&list->head, node);
}

static inline void list_push_front(struct list *list, struct list_node *node)
{
    list_insert_before(list->head.next, node);
}

static inline void list_remove(struct list_node *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    list_node_init(node);
}

// Returns the first or last node, or NULL if the list is empty.
static inline struct list_node *list_first(struct list *list)
{
    return list_empty(list) ? NULL : list->head.next;
}

static inline struct list_node *list_last(struct list *list)
{
    return list_empty(list) ? NULL : list->head.prev;
}

static inline struct list_node *list_pop_front(struct list *list)
{
    struct list_node *node = list_first(list);
    if (node != NULL) {
        list_remove(node);
    }
    return node;
}

// Moves all nodes of `from` to the end of `to`. `from` is empty afterwards.
static inline void list_append_all(struct list *to, struct list *from)
{
    if (list_empty(from)) {
        return;
    }
    from->head.next->prev = to->head.prev;
    to->head.prev->next = from->head.next;
    from->head.prev->next = &to->head;
    to->head.prev = from->head.prev;
    list_init(from);
}

// Runs the body for each node. The body may remove `node`, but no other node, because the macro has
// already read the next one.
#define list_for_each(node, list)                                                                  \
    for (struct list_node *node = (list)->head.next, *node##_next = node->next;                    \
         node != &(list)->head; node = node##_next, node##_next = node->next)

#endif
