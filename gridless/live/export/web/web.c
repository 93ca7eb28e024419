/* What the page calls: one stream, with its events and predictions in memory that the page can see. */
#include "network.c"

#include "golden.h"

#define ROOM 32768
#define EXPORT(name) __attribute__((export_name(#name)))

static net_state state;
static net_event events[ROOM];
static float logits[NET_CLASSES];
static int predictions;

static void predicted(void *user, int64_t time, const float *now) {
    int k;
    (void)user, (void)time;
    for (k = 0; k < NET_CLASSES; k++) logits[k] = now[k];
    predictions++;
}

EXPORT(room) int room(void) { return ROOM; }
EXPORT(width) int width(void) { return NET_WIDTH; }
EXPORT(height) int height(void) { return NET_HEIGHT; }
EXPORT(classes) int classes(void) { return NET_CLASSES; }
EXPORT(events) net_event *events_here(void) { return events; }
EXPORT(logits) float *logits_here(void) { return logits; }
EXPORT(predictions) int predictions_so_far(void) { return predictions; }

EXPORT(reset) void reset(void) {
    predictions = 0;
    net_reset(&state);
    net_predict(&state, logits);
}

/* The first n events. 0, or 1 plus the index of a bad one. */
EXPORT(push) int push(int n) { return net_push(&state, events, (size_t)n, predicted, 0); }

EXPORT(predict) void predict(void) { net_predict(&state, logits); }

/* Events of the golden recording, to be pushed. */
EXPORT(golden) void golden(int first, int n) {
    int i;
    for (i = 0; i < n; i++) events[i] = golden_event((uint64_t)(first + i));
}

EXPORT(golden_events) int golden_events(void) { return GOLDEN_EVENTS; }
EXPORT(golden_logit) double golden_logit(int k) { return golden_logits[k]; }
