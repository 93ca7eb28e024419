/*
 * @TITLE@
 * Written by gridless; the network's digest is @DIGEST@.
 *
 * C99, without allocation, file-scope state or library calls. All memory is the caller's: net_bytes() bytes, aligned as
 * int64_t (better as net_state), hold one stream. A copy of these bytes is a saved stream; putting them back restores it.
 * States of different streams are independent, so that every thread may have its own.
 */
#ifndef NET_H
#define NET_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NET_BYTES @BYTES@u
#define NET_CLASSES @CLASSES@
#define NET_WIDTH @WIDTH@
#define NET_HEIGHT @HEIGHT@
#define NET_DURATION @DURATION@ /* microseconds of a window; 0: none */

/* Memory that begins with a cache line is quicker; C++ allocates it so from C++17 on. */
#if defined(__GNUC__) && (!defined(__cplusplus) || __cplusplus >= 201703L)
#define NET_LINE __attribute__((aligned(64)))
#else
#define NET_LINE
#endif

/* A place for one stream that needs no allocation. */
typedef union {
    int64_t align;
    unsigned char bytes[NET_BYTES];
} NET_LINE net_state;

/* An event in 16 bytes. Time in microseconds; polarity 1 is ON, 0 is OFF. */
typedef struct {
    int64_t time;
    uint16_t x, y;
    uint8_t polarity, unused[3];
} net_event;

/* Prophesee's packed event in 8 bytes: the low 32 bits of the time, then x (14 bits), y (14) and polarity (4). */
typedef struct {
    uint32_t time, place;
} net_packed;

/* A prediction: logits of NET_CLASSES classes that were true at a time. They are valid during the call. */
typedef void (*net_callback)(void *user, int64_t time, const float *logits);

size_t net_bytes(void);

/* As before the first event. A state must be reset (or restored) before its first use. */
void net_reset(void *state);

/*
 * Take in n events. @WHEN@
 * on_prediction may be 0.
 *
 * 0: all were taken. k > 0: event k - 1 is bad (outside the sensor, a polarity other than 0 and 1, before the event that
 * came before it, or at a time under 0 or from 2^60 on), none was taken, and the state is as it was. -1: this is not a
 * state of this network.
 */
int net_push(void *state, const net_event *events, size_t n, net_callback on_prediction, void *user);

/* The same for packed events. Their time goes on from that of the last event, less than 2^31 microseconds later. */
int net_push_packed(void *state, const net_packed *events, size_t n, net_callback on_prediction, void *user);

/* The logits at this moment. Uses working memory inside the state: not at the same time as another call on it. */
void net_predict(const void *state, float *logits);

#ifdef __cplusplus
}
#endif

#endif
