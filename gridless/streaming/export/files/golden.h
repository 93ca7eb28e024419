/* What the network must answer after the first GOLDEN_EVENTS events of the recording of test.c. */
#define GOLDEN_EVENTS @GOLDEN@
#define GOLDEN_PREDICTIONS @PREDICTIONS@
/* How far from it the logits may be, relative to the largest: float32 sums in another order. */
#define GOLDEN_ERROR @ERROR@

static const double golden_logits[] = {@LOGITS@};
