"""bias + sum over taps u and decays v of trace_uv weight_uv: the convolution of events, see `gridless.ops.event_conv`.

A pixel of the source has a slot for every tap at which some target sees it: `size` floats, channels of each decay. An
event fades all slots of its pixel and adds itself. A target reads, at each tap, the slot of that pixel, faded to its
own time. The loop multiplies the slots that a block of events has read by the weights of the tap. Most pixels of a
sparse stream are empty: they saw no event, or their trace has decayed to 0. The loop leaves them out, unless slots are
short: then a row holds all taps, with zeros at empty pixels.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from gridless.geometry.taps import coarser, offsets, reach_of
from gridless.live.operation import Operation, own_fields
from gridless.live.operations.polarity import polarity
from gridless.live.panels import product, spread
from gridless.live.rows import Row
from gridless.live.simd import decays, enter, enter_each, read, read_each
from gridless.live.table import (
    A_KEPT,
    A_PITCH,
    CLOCK,
    ENTERED,
    GATHERED,
    KEPT,
    LIST,
    LONGEST,
    PITCH,
    ROWS,
    S_COUNT,
    S_EVENT,
    S_HEIGHT,
    S_SOURCE,
    S_WIDTH,
    SHIFT,
    STEPS,
    TRACE,
    VALUE,
    WEIGHT,
    A,
)  # fmt: skip
from gridless.live.values import CUT, array_of
from gridless.nn.events import EventConv, PolarityConv
from gridless.ops.event_conv.reference import CUTOFF

(
    TAPS, DECAYS, SIZE, KIND, IN_PLACE, STRIDE, LISTS, TAP, ROW_AT, COLUMN_AT, PHASE, RATE, FACTOR, PATTERN,
) = own_fields(14)  # fmt: skip

# Kinds of slots: eight or sixteen channels at a time with one decay for each run of channels; or, with fewer than eight
# channels, a rate for every float.
EIGHTS, SIXTEENS, EACH = range(3)

# Taps with fewer floats than this are multiplied together.
SHORT = 16

# In C: runs of fewer channels than this have a rate for every channel; taps of fewer numbers than APART are multiplied
# together; numbers of a vector, and of a wide one.
NARROW, APART, LANES, WIDE = 8, 32, 4, 8


def event_conv(r: Any, layer: EventConv, x: Any, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    return convolve(r, layer, r.of(x, layer.near.source))


def polarity_conv(r: Any, layer: PolarityConv, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    return convolve(r, layer, polarity(r, r.streams[str(layer.near.source)]))


def convolve(r: Any, layer: EventConv, x: Row) -> Row:
    near = layer.near
    if near.window is not None:
        raise ValueError(CUT)
    source, target = r.streams[str(near.source)], r.streams[str(near.target)]
    if target is not source and target.source != source.name:
        raise ValueError(
            f"stream: {r.name} convolves {source.name} to {target.name}, which {source.name} does not fire. Convolve "
            "a stream to itself, or to the stream that it fires."
        )
    if (grid := coarser(source.sensor, near.stride)) != target.sensor:
        raise ValueError(
            f"stream: {r.name} has the stride {near.stride}, but {source.name} has {source.sensor} pixels and "
            f"{target.name} has {target.sensor}. With this stride {target.name} needs {grid}."
        )
    _, decays, q, p = layer.weight.shape
    r.channels(x, q)
    settings = {"source": source.name, "kernel": near.kernel, "stride": near.stride}
    slots = sum(fed_pixels(near.kernel, near.stride, source.sensor, target.sensor))
    bias = np.zeros(p, np.float32) if layer.bias is None else array_of(layer.bias)
    # In 16 bits the exponential would be off by 1e-3.
    log_rate = layer.log_rate.to(torch.promote_types(layer.log_rate.dtype, torch.float32))
    rate = array_of((log_rate.exp().double() / layer.decay_time).expand(len(layer.weight), -1))
    if np.isnan(rate).any():
        raise ValueError(f"stream: a rate of {r.name} is nan. Use other weights.")
    return r.add(
        r.name, "convolve", target.name, (x,), (p,), settings, 4 * slots * decays * q + 8 * source.pixels,
        rate=rate, weight=array_of(layer.weight), bias=bias,
    )  # fmt: skip


def fed_pixels(kernel: int | str, stride: int, source: tuple[int, int], target: tuple[int, int]) -> list[int]:
    """Number of source pixels that feed each tap of a convolution."""

    def along(size: int, grid: int, offset: int) -> int:
        return sum(0 <= stride * o + offset < size for o in range(grid))

    return [along(source[0], target[0], dx) * along(source[1], target[1], dy) for dx, dy in offsets(kernel)]


class Convolve(Operation):
    name = "convolve"
    modules = {PolarityConv: polarity_conv, EventConv: event_conv}
    reads_events = True
    # size: floats of a slot (one tap of one source pixel). kind: see EIGHTS. in_place: the stream is its own source.
    # lists: lists of events, one for each tap (those that see something there), or one for all taps.
    # In `i`: tap: dx, dy, slot and longest age of each tap. row_at, column_at: offsets of y, and of x at the phase of
    # y, whose sum is the begin of a pixel's slots. phase: begin of the rates and number of slots of each phase.
    # In `f`: rate: rates of each tap, and of each phase. factor: decays. pattern: patterns of polarity.
    fields = (
        "taps", "decays", "size", "kind", "in_place", "stride", "lists", "tap", "row_at", "column_at", "phase", "rate",
        "factor", "pattern",
    )  # fmt: skip

    def multiply_adds(self, row):
        taps, decays, q, p = row.constants["weight"].shape
        return taps * decays * q * (1 + p), round(taps * decays * q / row.settings["stride"] ** 2)

    def lower(self, lowered, row, entry):
        flat, settings = lowered.flat, row.settings
        stream, source = lowered.streams[row.stream], lowered.streams[settings["source"]]
        (taps, v, q, _), stride = row.constants["weight"].shape, settings["stride"]
        pitch, each = entry["pitch"], q < 8
        size, rates, matrix = self._slots(lowered, row, pitch)
        table, fed = self._taps(row)
        phases: list[Any] = []
        for own in fed.values():
            phases += [flat.add("weight", rates[own]), len(own)]
        columns, lines, slots = self._places(fed, stride, source["width"], source["height"])
        most = max(len(own) for own in fed.values()) * v
        pattern: Any = -1
        if each and lowered.values[row.inputs[0]]["value"] == -1:
            tiled = [np.tile(np.eye(2, dtype=np.float32)[on], v) for on in range(2)]
            pattern = flat.add("weight", np.stack([lowered.fill(part, size) for part in tiled]))
        clock = lowered.clock(source["width"] * source["height"])
        # Short slots are faster together, though some of them are empty.
        lists = taps if size >= SHORT else 1
        parts = [lowered.panels(part) for part in matrix.reshape(lists, -1, pitch)]
        lowered.gather(taps * size, lists)
        in_place = int(source is stream)
        return [
            entry
            | {
                "weight": flat.add("weight", np.concatenate(parts)), "lists": lists, "rest": 1 - in_place,
                "shift": flat.add("weight", lowered.fill(row.constants["bias"], pitch)), "in_place": in_place,
                "trace": flat.room("trace", slots * size), "clock": clock, "steps": q, "taps": taps, "decays": v,
                "size": size, "kind": EACH if each else SIXTEENS if size // v % 16 == 0 else EIGHTS, "stride": stride,
                "tap": flat.add("whole", table), "row_at": flat.add("whole", lines),
                "column_at": flat.add("whole", columns), "phase": lowered.later(phases), "pattern": pattern,
                "rate": flat.add("weight", rates), "factor": flat.room("work", max(most, size) + 8),
            }
        ]  # fmt: skip

    @staticmethod
    def _slots(lowered: Any, row: Row, pitch: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Floats of a slot, rates, and weights in the order of a slot."""
        weight, rate = row.constants["weight"], row.constants["rate"]
        taps, v, q, p = weight.shape
        if q < 8:
            # Decays and channels are one run of floats, each with a rate of its own. Those that fill it up get the rate
            # 1e30, so that they decay to nothing.
            size = -(-v * q // 8) * 8
            rates = np.pad(np.repeat(rate, q, 1), [(0, 0), (0, size - v * q)], constant_values=1e30)
            return size, rates, lowered.fill(weight.reshape(taps, v * q, p), taps, size, pitch)
        wide = -(-q // 8) * 8
        return v * wide, rate, lowered.fill(weight, taps, v, wide, pitch)

    @staticmethod
    def _taps(row: Row) -> tuple[list[int], dict[tuple[int, int], list[int]]]:
        """dx, dy, slot and longest age of each tap; and, for each phase, the taps at which a target sees its pixels."""
        stride, rate = row.settings["stride"], row.constants["rate"]
        fed: dict[tuple[int, int], list[int]] = {(y, x): [] for y in range(stride) for x in range(stride)}
        table = []
        for u, (dx, dy) in enumerate(offsets(row.settings["kernel"])):
            phase = fed[dy % stride, dx % stride]
            # Beyond this age every decay of the tap is 0; the margin is for rounding.
            table += [dx, dy, len(phase), math.ceil(CUTOFF / max(rate[u].min(), CUTOFF / LONGEST) * 1.001)]
            phase.append(u)
        return table, fed

    @staticmethod
    def _places(fed: dict, stride: int, width: int, height: int) -> tuple[list[int], list[int], int]:
        """Offsets of x and of y, whose sum is the begin of a pixel's slots; and the number of all slots."""
        columns, lines, at = [], [], 0
        for y in range(stride):
            counts = [len(fed[y, x % stride]) for x in range(width)]
            begins = np.concatenate([[0], np.cumsum(counts)])
            columns += [n for x in range(width) for n in (int(begins[x]), y * stride + x % stride)]
        totals = [sum(len(fed[y, x % stride]) for x in range(width)) for y in range(stride)]
        for y in range(height):
            lines += [at, y % stride * width]
            at += totals[y % stride]
        return columns, lines, at

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        # With n = 0 the rest of the source enters.
        taps, v, size, kind, in_place, stride = (
            i[r + TAPS], i[r + DECAYS], i[r + SIZE], i[r + KIND], i[r + IN_PLACE], i[r + STRIDE],
        )  # fmt: skip
        source = s if in_place else i[s + S_SOURCE]
        width, height = i[source + S_WIDTH], i[source + S_HEIGHT]
        targets, sources, trace, clock = i[s + S_EVENT], i[source + S_EVENT], i[r + TRACE], i[r + CLOCK]
        rates, factor, pattern, tap, gathered = (
            i[r + RATE],
            i[r + FACTOR],
            i[r + PATTERN],
            i[r + TAP],
            i[r + GATHERED],
        )
        lists, listed = i[r + LISTS], i[r + LIST]
        rows, steps = listed + lists, taps * size // lists
        for u in range(lists):
            i[listed + u] = 0
        if lists == 1:
            i[listed] = n
            for k in range(n):
                i[rows + k] = k
        row_at, column_at, phases = i[r + ROW_AT], i[r + COLUMN_AT], i[r + PHASE]
        features, pitch, entered, q = i[r + A], i[r + A_PITCH], i[r + ENTERED], i[r + STEPS]
        if not i[r + A_KEPT]:
            features -= first * pitch
        for j in range(first, first + max(n, 1)):
            until = i[source + S_COUNT] - 1
            if n:
                until = j if in_place else i[targets + 4 * j + 3]
            while entered <= until:
                x, y, t = i[sources + 4 * entered], i[sources + 4 * entered + 1], i[sources + 4 * entered + 2]
                pixel = clock + y * width + x
                age = np.float32(t - i[pixel]) if i[pixel] >= 0 else np.float32(0.0)
                i[pixel] = t
                column = column_at + 2 * (i[row_at + 2 * y + 1] + x)
                place = trace + (i[row_at + 2 * y] + i[column]) * size
                phase = phases + 2 * i[column + 1]
                rate, slots = i[phase], i[phase + 1]
                at = features + entered * pitch
                if kind == EACH:
                    if pattern >= 0:
                        at = pattern + size * i[sources + 4 * entered + 3]
                    else:
                        for k in range(v):
                            for c in range(q):
                                f[factor + k * q + c] = f[at + c]
                        for k in range(v * q, size):
                            f[factor + k] = 0.0
                        at = factor
                    for _ in range(slots):
                        for k in range(0, size, 8):
                            enter_each(f, place + k, place + k, at + k, rate + k, age)
                        place += size
                        rate += size
                else:
                    count, wide = slots * v, size // v
                    for k in range(0, count, 8):
                        decays(8, f, factor + k, rate + k, age)
                    if kind == SIXTEENS:
                        for k in range(count):
                            left = f[factor + k]
                            for c in range(0, wide, 16):
                                enter(16, f, place + c, place + c, at + c, left)
                            place += wide
                    else:
                        for k in range(count):
                            left = f[factor + k]
                            for c in range(0, wide, 8):
                                enter(8, f, place + c, place + c, at + c, left)
                            place += wide
                entered += 1
            if n == 0:
                break
            x, y, t = stride * i[targets + 4 * j], stride * i[targets + 4 * j + 1], i[targets + 4 * j + 2]
            for u in range(taps):
                sx, sy = x + i[tap + 4 * u], y + i[tap + 4 * u + 1]
                then = np.int64(-1)
                if 0 <= sx < width and 0 <= sy < height:
                    then = i[clock + sy * width + sx]
                empty = then < 0 or t - then > i[tap + 4 * u + 3]
                if lists == 1:
                    to = gathered + (j - first) * steps + u * size
                    if empty:
                        for k in range(size):
                            f[to + k] = 0.0
                elif not empty:
                    k = i[listed + u]
                    i[rows + u * ROWS + k], i[listed + u] = j - first, k + 1
                    to = gathered + (u * ROWS + k) * size
                if empty:
                    continue
                age = np.float32(t - then)
                slot = i[row_at + 2 * sy] + i[column_at + 2 * (i[row_at + 2 * sy + 1] + sx)] + i[tap + 4 * u + 2]
                place = trace + slot * size
                if kind == EACH:
                    for k in range(0, size, 8):
                        read_each(f, to + k, place + k, rates + u * size + k, age)
                    continue
                wide = size // v
                if v <= 4:
                    decays(4, f, factor, rates + u * v, age)
                else:
                    for k in range(0, v, 8):
                        decays(8, f, factor + k, rates + u * v + k, age)
                if kind == SIXTEENS:
                    for k in range(v):
                        left = f[factor + k]
                        for c in range(0, wide, 16):
                            read(16, f, to + c, place + c, left)
                        to += wide
                        place += wide
                else:
                    for k in range(v):
                        left = f[factor + k]
                        for c in range(0, wide, 8):
                            read(8, f, to + c, place + c, left)
                        to += wide
                        place += wide
        i[r + ENTERED] = entered
        if n:
            wide = i[r + PITCH]
            value = i[r + VALUE] + (first * wide if i[r + KEPT] else 0)
            spread(f, i[r + SHIFT], value, n, wide)
            for u in range(lists):
                of, weight = gathered + u * ROWS * steps, i[r + WEIGHT] + u * steps * wide
                product(f, value, wide, i, rows + u * ROWS, of, weight, i[listed + u], steps, lane)

    def c(self, writer, row, n):
        source, target = writer.streams[row.settings["source"]], writer.streams[str(row.stream)]
        taps, _, q, p = row.constants["weight"].shape
        (weight, rate, factors, each), k = self._slots_in_c(row), writer.index[row.name]
        shared = bool((rate == rate[0]).all()) and source.pixels < target.pixels * taps
        rates, steps = writer.rates(rate), taps * factors * each
        writer.factors, writer.taps = max(writer.factors, factors + WIDE, each), max(writer.taps, taps)
        writer.wide &= (factors if each == 1 else each) % WIDE == 0
        slots = source.pixels if shared else target.pixels * taps
        kind = "int16_t" if writer.bits == 16 else "float"
        trace = writer.memory.add(kind, f"trace{k}", slots * factors * each)
        time = writer.memory.add("int64_t", f"time{k}", source.pixels)
        out = writer.buffer(row)
        # Short taps are faster in one row for all taps, with zeros at empty pixels.
        apart = taps > 1 and factors * each >= APART
        matrix = writer.matrix(weight.reshape(steps, p), row.constants["bias"], taps if apart else 1)
        kernel = row.settings["kernel"]
        window = [reach_of(kernel), int(isinstance(kernel, str)), row.settings["stride"], *target.sensor]
        numbers = (q, taps, factors, each, int(shared), rates, writer.offset(rate.min(1)))
        sizes = [*map(str, source.sensor), f"{{{', '.join(map(str, window))}}}", *map(str, numbers)]
        writer.settings.append(f"static const convolution conv{k} = {{{', '.join(sizes)}}};")
        writer.functions.append(_FUNCTIONS.format(k=k, seen="seen" if apart else 0))
        writer.reset.append(f"for (i = 0; i < {source.pixels}; i++) {time}[i] = NEVER;")
        own = source is target
        cursor = "at" if own else writer.memory.add("int32_t", f"at{k}")
        entered = f"s->events_{source.name}[{cursor}], {writer.at[row.inputs[0]]} + {cursor} * {q}"
        enter = f"{cursor}++) enter{k}({entered}, {trace}, {time});"
        if not own:
            # The source's events that fired nothing, before others take their place.
            writer.bodies[source.name] += [
                writer.comment(f"The rest of the source of {row.name}."),
                f"for (; {cursor} < count; {enter}",
                f"{cursor} = 0;",
            ]
        place = "j - i, s->row, &seen" if apart else f"0, s->row + (j - i) * {steps}, 0"
        fill = [
            *(["sight seen;", f"for (k = 0; k < {taps}; k++) seen.many[k] = 0;"] if apart else []),
            "for (j = i; j < i + some; j++) {",
            f"    for (; {cursor} <= {'j' if own else 'e[j].cause'}; {enter}",
            f"    gather{k}(e[j], {place}, {trace}, {time});",
            "}",
        ]
        lines = writer.blocks(n, fill, out, p, matrix)
        return ["at = 0;", *lines] if own else lines

    @staticmethod
    def _slots_in_c(row: Row) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Weights and rates in the order of a slot, the number of its factors, and the numbers of each."""
        weight, rate = row.constants["weight"], row.constants["rate"]
        taps, decays, q, p = weight.shape
        if q >= NARROW:
            each = q + -q % LANES
            return np.pad(weight, [(0, 0), (0, 0), (0, each - q), (0, 0)]), rate, decays, each
        # A rate for every channel, in whole vectors.
        spare = -decays * q % LANES
        weight = np.pad(weight.reshape(taps, decays * q, p), [(0, 0), (0, spare), (0, 0)])
        rate = np.pad(np.repeat(rate, q, 1), [(0, 0), (0, spare)], mode="edge")
        return weight, rate, decays * q + spare, 1

    def example(self, net):
        net.part = EventConv(net.plan.causal(net.stream, net.stream, "cross3"), 6, 9)
        return lambda x, geometry, memory: net.part(x, geometry, memory)


# A convolution's functions are its own, so that its sizes are known when they are compiled.
_FUNCTIONS = """APART void enter{k}(event e, const float *features, number *trace, int64_t *time) {{
    enter(&conv{k}, e, features, trace, time);
}}
APART void gather{k}(event e, int row, float *rows, sight *seen, const number *trace, const int64_t *time) {{
    gather(&conv{k}, e, row, rows, {seen}, trace, time);
    (void)seen;
}}"""
