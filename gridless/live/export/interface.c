
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

#if defined(CHOICE)
/* Numbers of the widest vectors that this processor and its system keep. */
FREE static int widest(void) {
    uint32_t a = 1, b, c = 0, d, kept;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (!(c >> 27 & c >> 28 & 1)) return 4;
    c = 0;
    __asm__ volatile("xgetbv" : "=a"(kept), "=d"(d) : "c"(c));
    a = 7;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return b >> 16 & 1 && (kept & 0xE6) == 0xE6 ? 16 : b >> 5 & 1 && (kept & 6) == 6 ? 8 : 4;
}
#endif

INLINE int take_in(void *state, const net_event *events, const net_packed *packed, size_t n, net_callback call, void *user) {
#if defined(CHOICE)
    /* To ask takes a microsecond or two on virtual machines: too long for few events. */
    int width = n < 256 ? 4 : widest();
    if (width == 16) return take_16(state, events, packed, n, call, user);
    if (width == 8) return take_8(state, events, packed, n, call, user);
#endif
    return take(state, events, packed, n, call, user);
}

FREE int net_push(void *state, const net_event *events, size_t n, net_callback on_prediction, void *user) {
    return take_in(state, events, 0, n, on_prediction, user);
}

FREE int net_push_packed(void *state, const net_packed *events, size_t n, net_callback on_prediction, void *user) {
    return take_in(state, 0, events, n, on_prediction, user);
}

FREE void net_predict(const void *state, float *logits) { answer((struct state *)(uintptr_t)state, logits); }
