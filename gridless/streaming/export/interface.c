
#if NET_DURATION
/* Whole division without the compiler's library, for a >= 0 and b > 0. */
FREE static int64_t divide(int64_t a, int64_t b) {
    uint64_t rest = 0, result = 0;
    int bit;
    for (bit = 62; bit >= 0; bit--) {
        rest = rest << 1 | ((uint64_t)a >> bit & 1);
        result <<= 1;
        if (rest >= (uint64_t)b) rest -= (uint64_t)b, result |= 1;
    }
    return (int64_t)result;
}
#endif

size_t net_bytes(void) { return sizeof(struct state); }

/* As the bytes that the header promises. */
typedef char state_has_the_bytes_of_the_header[sizeof(struct state) == NET_BYTES ? 1 : -1];
typedef char events_have_16_bytes[sizeof(net_event) == 16 && sizeof(net_packed) == 8 ? 1 : -1];

FREE void net_reset(void *memory) {
    struct state *s = memory;
    volatile int64_t *word = memory;
    size_t i;
    for (i = 0; i < sizeof(struct state) / 8; i++) word[i] = 0;
    s->digest = DIGEST;
@RESET@}

/* Event i, told from either kind of record, after one at time `before`: whether it is good. */
INLINE int decode(const struct state *s, const net_event *records, const net_packed *packed, size_t i, int begun,
                  int64_t before, event *e) {
    if (packed) {
        uint32_t place = packed[i].place, later = packed[i].time - (uint32_t)before;
        if (begun && later >> 31) return 0;
        e->time = begun ? before + (int64_t)later : (int64_t)packed[i].time;
        e->x = (int32_t)(place & 0x3FFF), e->y = (int32_t)(place >> 14 & 0x3FFF), e->on = (int32_t)(place >> 28);
    } else {
        e->time = records[i].time, e->x = records[i].x, e->y = records[i].y, e->on = records[i].polarity;
        if (begun && e->time < before) return 0;
    }
    (void)s;
    return e->x < NET_WIDTH && e->y < NET_HEIGHT && e->on < 2 && e->time > -LONGEST && e->time < LONGEST;
}

INLINE int take(void *memory, const net_event *records, const net_packed *packed, size_t n, net_callback call,
                void *user) {
    struct state *s = memory;
    listener to;
    event e;
    int64_t time = s->time;
    int begun = s->begun != 0, count = 0;
    size_t i;
    if (s->digest != DIGEST) return -1;
    to.call = call, to.user = user;
    for (i = 0; i < n; i++) {
        if (!decode(s, records, packed, i, begun, time, &e)) return i < 0x7FFFFFFF ? (int)i + 1 : 0x7FFFFFFF;
        time = e.time, begun = 1;
    }
    for (i = 0; i < n; i++) {
        decode(s, records, packed, i, s->begun != 0, s->time, &e);
#if NET_DURATION
        if (!s->begun) s->start = e.time;
        if (e.time - s->start >= NET_DURATION) {
            if (count) run_@INPUT@(s, count, &to);
            count = 0;
            answer(s, s->logits);
            if (call) call(user, s->start + NET_DURATION, s->logits);
            s->start += divide(e.time - s->start, NET_DURATION) * NET_DURATION;
            restart(s);
        }
#endif
        s->begun = 1, s->time = e.time;
        s->events_@INPUT@[count++] = e;
        if (count == CHUNK || i + 1 == n) {
            run_@INPUT@(s, count, &to);
            count = 0;
        }
    }
    return 0;
}

FREE int net_push(void *state, const net_event *events, size_t n, net_callback on_prediction, void *user) {
    return take(state, events, 0, n, on_prediction, user);
}

FREE int net_push_packed(void *state, const net_packed *events, size_t n, net_callback on_prediction, void *user) {
    return take(state, 0, events, n, on_prediction, user);
}

FREE void net_predict(const void *state, float *logits) { answer((struct state *)(uintptr_t)state, logits); }
