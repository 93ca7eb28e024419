/*
 * The network on the recording of golden.h: test [EVENTS [PACKET]].
 *
 * Prints a digest of the bits of every prediction, which is the same for every compiler, machine and size of packets, and
 * the time per event. Fails where the logits after the first GOLDEN_EVENTS events are not those of golden.h, where packed
 * events, a saved state or another size of packets change a bit, or where a bad event is taken.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "golden.h"

static net_state state, saved;

typedef struct {
    uint64_t digest;
    unsigned long predictions;
} result;

/* Seconds of the processor; WebAssembly has no such clock. */
static double now(void) {
#if defined(__wasm__)
    return 0;
#else
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

static void add(result *r, const void *bytes, size_t n) {
    const unsigned char *byte = bytes;
    size_t i;
    for (i = 0; i < n; i++) r->digest = (r->digest ^ byte[i]) * 0x100000001B3u;
}

static void predicted(void *user, int64_t time, const float *logits) {
    result *r = user;
    r->predictions++;
    add(r, &time, sizeof time);
    add(r, logits, NET_CLASSES * sizeof *logits);
}

static net_packed packed(net_event e) {
    net_packed word;
    word.time = (uint32_t)e.time;
    word.place = e.x | (uint32_t)e.y << 14 | (uint32_t)e.polarity << 28;
    return word;
}

/* All events through the state, in packets; a copy of the state goes on in the middle. */
static result run(uint64_t events, size_t packet, int short_ones, float *logits, double *seconds) {
    static net_event records[4096];
    static net_packed words[4096];
    result r = {0xCBF29CE484222325u, 0};
    uint64_t at = 0;
    int moved = 0;
    net_reset(&state);
    *seconds = 0;
    while (at < events) {
        size_t n = (size_t)(events - at < packet ? events - at : packet), i;
        double begin;
        int failed;
        for (i = 0; i < n; i++) {
            records[i] = golden_event(at + i);
            words[i] = packed(records[i]);
        }
        begin = now();
        failed = short_ones ? net_push_packed(&state, words, n, predicted, &r) : net_push(&state, records, n, predicted, &r);
        *seconds += now() - begin;
        if (failed) {
            printf("event %lu was refused\n", (unsigned long)(at + (uint64_t)failed - 1));
            exit(1);
        }
        at += n;
        if (!moved && at >= events / 2) {
            memcpy(&saved, &state, net_bytes());
            net_reset(&state);
            memcpy(&state, &saved, net_bytes());
            moved = 1;
        }
    }
    net_predict(&state, logits);
    add(&r, logits, NET_CLASSES * sizeof *logits);
    return r;
}

/* Whether a packet with a bad event in the middle is refused by its index, and nothing else happens. */
static int refuses(void) {
    net_event good = golden_event(GOLDEN_EVENTS), packet[3];
    net_packed words[3];
    int kind, wrong = 0, i;
    for (kind = 0; kind < 5; kind++) {
        packet[0] = packet[1] = packet[2] = good;
        if (kind == 0) packet[1].x = NET_WIDTH;
        if (kind == 1) packet[1].y = NET_HEIGHT;
        if (kind == 2) packet[1].polarity = 2;
        if (kind == 3) packet[1].time--;
        if (kind == 4) packet[1].time = packet[2].time = (int64_t)1 << 60;
        memcpy(&saved, &state, net_bytes());
        wrong |= net_push(&state, packet, 3, 0, 0) != 2 || memcmp(&saved, &state, net_bytes()) != 0;
        if (kind == 4) continue;
        for (i = 0; i < 3; i++) words[i] = packed(packet[i]);
        wrong |= net_push_packed(&state, words, 3, 0, 0) != 2 || memcmp(&saved, &state, net_bytes()) != 0;
    }
    net_reset(&saved);
    packet[0] = good, packet[0].time = -1;
    wrong |= net_push(&saved, packet, 1, 0, 0) != 1;
    memset(&saved, 0, sizeof saved);
    return !wrong && net_push(&saved, &good, 1, 0, 0) == -1;
}

int main(int count, char **words) {
    uint64_t events = count > 1 ? strtoull(words[1], 0, 10) : GOLDEN_EVENTS;
    size_t packet = count > 2 ? (size_t)strtoul(words[2], 0, 10) : 1000;
    float logits[NET_CLASSES];
    double seconds, largest = 0, error = 0;
    result golden, other, all;
    int k;
    packet = packet < 1 ? 1 : packet > 4096 ? 4096 : packet;
    golden = run(GOLDEN_EVENTS, packet, 0, logits, &seconds);
    for (k = 0; k < NET_CLASSES; k++) {
        double away = (double)logits[k] - golden_logits[k], size = golden_logits[k];
        away = away < 0 ? -away : away;
        /* What is not a number stays so. */
        if (away > error || away != away) error = away;
        largest = largest > size ? largest : size;
        largest = largest > -size ? largest : -size;
    }
    printf("golden     %lu predictions, relative error %.2g\n", golden.predictions, error / largest);
    printf("logits    ");
    for (k = 0; k < NET_CLASSES; k++) {
        uint32_t bits;
        memcpy(&bits, &logits[k], sizeof bits);
        printf(" %08lx", (unsigned long)bits);
    }
    printf("\n");
    if (golden.predictions != GOLDEN_PREDICTIONS || !(error <= GOLDEN_ERROR * largest)) {
        printf("FAILED: these are not the golden logits\n");
        return 1;
    }
    if (!refuses()) {
        printf("FAILED: a bad event was not refused as it should be\n");
        return 1;
    }
    other = run(GOLDEN_EVENTS, 37, 1, logits, &seconds);
    if (golden.digest != other.digest) {
        printf("FAILED: packed events in other packets change the result\n");
        return 1;
    }
    all = run(events, packet, 0, logits, &seconds);
    printf("digest     %08lx%08lx\n", (unsigned long)(all.digest >> 32), (unsigned long)(all.digest & 0xFFFFFFFFu));
    printf("speed      %.3f us per event, packets of %lu\n", 1e6 * seconds / (double)events, (unsigned long)packet);
    return 0;
}
