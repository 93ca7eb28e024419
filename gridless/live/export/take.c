/* Event i, told from either kind of record, after one at time `before`: whether it is good. */
INLINE int decode(const struct state *s, const net_event *records, const net_packed *packed, size_t i, int begun,
                  int64_t before, event *e) {
    e->cause = 0;
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
    return e->x < NET_WIDTH && e->y < NET_HEIGHT && e->on < 2 && e->time >= 0 && e->time < LONGEST;
}

APART int take(void *memory, const net_event *records, const net_packed *packed, size_t n, net_callback call,
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
