/* A recording that is made of whole numbers only, of any length, and what the network must answer to its beginning. */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "network.h"

#define GOLDEN_EVENTS @GOLDEN@
#define GOLDEN_PREDICTIONS @PREDICTIONS@
/* How far from these the logits after it may be, relative to the largest: sums in float32 instead of float64. */
#define GOLDEN_ERROR @ERROR@

static const double golden_logits[] = {@LOGITS@};

static uint64_t mixed(uint64_t i) {
    i += 0x9E3779B97F4A7C15u;
    i = (i ^ i >> 30) * 0xBF58476D1CE4E5B9u;
    i = (i ^ i >> 27) * 0x94D049BB133111EBu;
    return i ^ i >> 31;
}

/* To and fro between 0 and size - 1. */
static int swing(uint64_t step, int size) {
    int most = size > 1 ? size - 1 : 1, at = (int)(step % (uint64_t)(2 * most));
    at = at < most ? at : 2 * most - at;
    return at < size ? at : size - 1;
}

static int within(int x, int size) { return x < 0 ? 0 : x < size ? x : size - 1; }

/* Event i: somewhere around a place that wanders over the sensor. */
static net_event golden_event(uint64_t i) {
    net_event e = {0, 0, 0, 0, {0, 0, 0}};
    uint64_t h = mixed(i);
    e.time = (int64_t)(10 * i + h % 10);
    e.x = (uint16_t)within(swing(i >> 6, NET_WIDTH) + (int)((h >> 8 & 255) % 9 + (h >> 16 & 255) % 9) - 8, NET_WIDTH);
    e.y = (uint16_t)within(swing(i >> 7, NET_HEIGHT) + (int)((h >> 24 & 255) % 9 + (h >> 32 & 255) % 9) - 8, NET_HEIGHT);
    e.polarity = (uint8_t)(h >> 40 & 1);
    return e;
}

#endif
