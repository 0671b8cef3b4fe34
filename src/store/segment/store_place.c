// SPDX-License-Identifier: Apache-2.0
// Pins and holds of places. A pin or hold on a place is a pin or hold on its segment. Any thread.
#include "store/segment/segment_log.h"

bool store_place_pin(struct store_place *place)
{
    check(place->segment != NULL);
    return segment_pin(place->segment, place->segment_number);
}

void store_place_unpin(struct store_place *place)
{
    if (place->segment != NULL) {
        segment_unpin(place->segment);
        place->segment = NULL;
    }
}

void store_place_pin_again(const struct store_place *place)
{
    check(place->segment != NULL);
    segment_pin_again(place->segment);
}

void store_place_unhold(struct store_place *place)
{
    check(place->segment != NULL && place->segment_number != 0);
    segment_unhold(place->segment);
}
