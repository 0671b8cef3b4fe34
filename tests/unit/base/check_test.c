// SPDX-License-Identifier: Apache-2.0
// Proves: check() ends the process, and list operations do what they promise.
#include "test.h"

#include "base/check.h"
#include "base/list.h"

#include <signal.h>

Test(check, aborts, .signal = SIGABRT)
{
    check(1 + 1 == 3);
}

struct item {
    int number;
    struct list_node node;
};

Test(list, keeps_order_and_moves)
{
    struct list list, other;
    struct item items[4];
    list_init(&list);
    list_init(&other);
    for (int i = 0; i < 4; i++) {
        items[i].number = i;
        list_node_init(&items[i].node);
        list_push_back(i < 2 ? &list : &other, &items[i].node);
    }
    list_append_all(&list, &other);
    cr_assert(list_empty(&other));
    int expected = 0;
    list_for_each(node, &list)
    {
        cr_assert_eq(container_of(node, struct item, node)->number, expected++);
        list_remove(node);
    }
    cr_assert_eq(expected, 4);
    cr_assert(list_empty(&list));
    list_remove(&items[0].node);
    cr_assert_not(list_node_linked(&items[0].node));
    cr_assert_null(list_pop_front(&list));
}
