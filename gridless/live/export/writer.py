"""A live program as C: a function for each stream, a few lines for each row, all constants in one table.

The writer joins these files to one text:

- `arithmetic.c`: rules of arithmetic for compilers; `runtime.c`: windows and LIF;
- `functions.c` (functions of one number) and functions of operations, for networks that need them;
- `widths.c`: the widths of vectors for which the next ones are compiled: `simd.c` (decays, numbers of 16 bits),
  `traces.c`, `products.c` (sums of products), the functions of this network, `take.c`;
- `interface.c`: the functions of the header.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gridless.geometry.lif import Rule
from gridless.geometry.taps import reach_of
from gridless.live.lowering import LINE
from gridless.live.operation import Sink
from gridless.live.operations import of
from gridless.live.program import EventStream, Program, Row
from gridless.live.table import LONGEST

HERE = Path(__file__).parent

# Columns of a panel of weights and rows that are multiplied together, as in products.c; numbers of a vector, and of a
# wide one (used where traces are whole wide vectors).
COLUMNS, TOGETHER, LANES, WIDE = 16, 4, 4, 8

# Rates below this have not faded to zero after 2^30 microseconds.
SLOW = 80 / 2**30

# The largest chunk.
MOST = 1 << 20

# The largest tables of decays, in numbers.
DECAYS = 1 << 20

# Names that C++ or CMake reserve, and names of C's headers and of golden.h.
RESERVED = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    main std all clean help install package test
    golden index log ptrdiff signal size time
"""


class StateLayout:
    """Parts of the state: (C type, name, elements or None for one number). Arrays come first, in whole cache lines."""

    SIZES = {"int64_t": 8, "double": 8, "event": 24, "float": 4, "int32_t": 4, "int16_t": 2}

    def __init__(self) -> None:
        self.parts: list[tuple[str, str, int | None]] = []

    def add(self, kind: str, name: str, count: int | None = None) -> str:
        if count is not None:
            many = LINE // math.gcd(LINE, self.SIZES[kind])
            count = -(-count // many) * many
        self.parts.append((kind, name, count))
        return f"s->{name}"

    @property
    def bytes(self) -> int:
        return -(-self._size // LINE) * LINE

    @property
    def _size(self) -> int:
        return sum(self.SIZES[kind] * (1 if count is None else count) for kind, _, count in self.parts)

    def __str__(self) -> str:
        parts = sorted(self.parts, key=lambda part: (part[2] is None, -self.SIZES[part[0]]))
        lines = [f"    {kind} {name}{'' if count is None else f'[{count}]'};" for kind, name, count in parts]
        # The state ends with a whole cache line for every compiler.
        if self._size % LINE:
            lines.append(f"    int16_t after_{parts[-1][1]}[{-self._size % LINE // 2}];")
        return "\n".join(lines)


class ConstantTable:
    """Constants, one after the other."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.size = 0

    def add(self, array: np.ndarray, begin: int = 1) -> int:
        """Add an array, and return its index, a multiple of `begin`."""
        self.parts.append(np.pad(array.reshape(-1), (-self.size % begin, 0)))
        self.size += len(self.parts[-1])
        return self.size - array.size

    def text(self, kind: type) -> str:
        values = np.concatenate(self.parts, dtype=kind) if self.parts else np.zeros(1, kind)
        if kind is np.float32:
            numbers = [f"0x{v:08x}" for v in values.view(np.uint32).tolist()]
        else:
            numbers = [str(v) for v in values.tolist()]
        return ",\n".join(",".join(numbers[a : a + 16]) for a in range(0, len(numbers), 16))


class Writer:
    """The C text of a program.

    Args:
        program: the program.
        bits: of weights and traces: 32 or 16.
        chunk: input events that go through the streams together. A small one needs less memory, a large one less time.
        name: prefix of all names.
    """

    def __init__(self, program: Program, bits: int = 32, chunk: int = 2048, name: str = "net") -> None:
        if bits not in (16, 32):
            raise ValueError(f"export: bits is {bits}. Give 16 or 32.")
        if not isinstance(chunk, int) or not 1 <= chunk <= MOST:
            raise ValueError(f"export: chunk is {chunk!r}. Give 1 to {MOST} events.")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            raise ValueError(f"export: {name!r} is no name in C. Choose a name such as left_eye.")
        if name in RESERVED.split() or name.lower() == "golden":
            raise ValueError(f"export: {name!r} is reserved in C++ or CMake. Choose another name, such as {name}_net.")
        for row in program.rows:
            for part, array in row.constants.items():
                if not np.isfinite(array).all():
                    raise ValueError(f"export: the {part} of {row.name} is not finite. Export other weights.")
        self.program, self.bits, self.chunk, self.name = program, bits, chunk, name
        self.library = "network" if name == "net" else name
        self.streams = {stream.name: stream for stream in program.streams}
        self.index = {row.name: k for k, row in enumerate(program.rows)}
        self.users = Counter([*(name for row in program.rows for name in row.inputs), program.output])
        self.memory, self.work = StateLayout(), StateLayout()
        self.constants, self.weights = ConstantTable(), ConstantTable()
        self.reset: list[str] = []
        self.restart: list[str] = []
        self.at: dict[str, str] = {}  # places of the rows' values
        self.shared: set[str] = set()  # rows whose place belongs to another row
        self.bodies: dict[str, list[str]] = {}
        self.settings: list[str] = []
        self.functions: list[str] = []  # for vectors of each width
        self.helpers: dict[str, None] = {}  # for all
        self.factors, self.taps, self.steps = 1, 1, 1
        self.slow, self.wide = False, True
        self.notes: dict[str, Any] = {}  # notes of operations about their rows

    # Sizes.

    def depth(self, stream: EventStream) -> int:
        return 0 if stream.source is None else 1 + self.depth(self.streams[stream.source])

    def capacity(self, name: str) -> int:
        """Room for events of a stream: at least for those that one event can fire."""
        stream = self.streams[name]
        if stream.source is None:
            return self.chunk
        fired = Rule.of(self.streams[stream.source].sensor, **stream.lif).most
        return -(-max(self.chunk >> self.depth(stream), fired, TOGETHER) // TOGETHER) * TOGETHER

    @property
    def block(self) -> int:
        return 32 if self.chunk > 16 else TOGETHER

    @property
    def step(self) -> int:
        return 256 if self.chunk > 16 else 64

    # Constants.

    def offset(self, array: np.ndarray, begin: int = 1) -> int:
        return self.constants.add(array.astype(np.float32), begin)

    def constant(self, array: np.ndarray) -> str:
        return f"(constants.value + {self.offset(array)})"

    def matrix(self, weight: np.ndarray, bias: np.ndarray, taps: int = 1) -> str:
        """The last arguments of a product: taps with rows of their own, weights (steps, columns) in panels, bias, and
        scales of 16-bit weights."""
        steps, columns = weight.shape
        self.steps = max(self.steps, steps)
        scale = "0"
        if self.bits == 16:
            # A power of two keeps weights of 11 bits exact. It must not become 0.
            largest = np.abs(weight).max(0, initial=0.0)
            factor = np.exp2(np.floor(np.log2(np.where(largest > 2**-100, largest, 1.0))) - 14).astype(np.float32)
            weight, scale = _halves(weight / factor), self.constant(factor)
        wide = -(-columns // (COLUMNS // 2)) * (COLUMNS // 2)
        padded = np.pad(weight, [(0, 0), (0, wide - columns)])
        panels = np.concatenate([padded[:, at : at + COLUMNS].reshape(-1) for at in range(0, wide, COLUMNS)])
        if self.bits == 16:
            where = f"small + {self.weights.add(panels, LINE // 2)}"
        else:
            where = f"constants.value + {self.offset(panels, LINE // 4)}"
        decoded = "s->decoded" if self.bits == 16 else "0"
        sizes = f"{taps}, {steps // taps}, {'&seen' if taps > 1 else 0}"
        return f"{sizes}, {where}, {self.constant(bias)}, {scale}, {decoded}"

    def rates(self, rate: np.ndarray) -> int:
        """Add rates, padded to whole vectors, and return their index."""
        self.slow |= bool((rate < SLOW).any())
        return self.offset(np.pad(rate.reshape(-1), (0, WIDE)))

    # Values.

    def buffer(self, row: Row) -> str:
        """Place of a row's value: over its first input if nothing else needs that, or a buffer of its own."""
        if of(row).over_input_in_c:
            first = row.inputs[0]
            if self.users[first] == 1 and first not in self.shared and self.program[first].stream == row.stream:
                self.at[row.name] = self.at[first]
                return self.at[row.name]
        rows = self.capacity(row.stream) if row.stream else row.cells
        # Products read whole blocks of rows.
        rows = -(-rows // TOGETHER) * TOGETHER
        self.at[row.name] = self.work.add("float", f"v{self.index[row.name]}", rows * row.channels)
        return self.at[row.name]

    def share(self, name: str, place: str) -> None:
        """Set the value of a row to a place that belongs to another row or memory."""
        self.at[name] = place
        self.shared.add(name)

    def row(self, row: Row, n: str) -> list[str]:
        """The lines that compute a row: `n` events, or cells."""
        self.use(row)
        return of(row).c(self, row, n)

    def use(self, row: Row) -> None:
        """Add the C functions of the row's operation."""
        if text := of(row).c_functions:
            self.helpers[text] = None

    def blocks(self, n: str, fill: list[str], out: str, p: int, matrix: str) -> list[str]:
        """Lines that fill the rows of each block and multiply them."""
        return [
            f"for (i = 0; i < {n}; i += BLOCK) {{",
            f"    int some = least(BLOCK, {n} - i);",
            *(f"    {line}" for line in fill),
            f"    product({out} + i * {p}, some, {p}, s->row, {matrix});",
            "}",
        ]

    @staticmethod
    def number(value: Any) -> str:
        """A float32 as an exact literal."""
        text = float(np.float32(value)).hex() if value else "0x0.0p+0"
        return f"{text}f"

    @staticmethod
    def comment(value: Any) -> str:
        return f"/* {in_comment(str(value))} */"

    # Functions.

    def stream_body(self, stream: EventStream) -> list[str]:
        """Lines for the events of a stream. Convolutions from it to other streams add theirs at the end."""
        program, lines = self.program, []
        for row in program.rows:
            if row.stream == stream.name:
                lines += [self.comment(row), *self.row(row, "count")]
        if program.answers == stream.name:
            last = program[program.output]
            row = last if last.stream else program[last.inputs[0]]
            out, c = self.at[row.name], row.channels
            lines += [
                "if (to->call)",
                f"    for (i = 0; i < count; i++) to->call(to->user, e[i].time, {out} + i * {c});",
            ]
            if row is last:
                lines.append(f"for (k = 0; k < {c}; k++) s->logits[k] = {out}[(count - 1) * {c} + k];")
        for row in program.rows:
            if row.stream is None and program[row.inputs[0]].stream == stream.name:
                lines += [self.comment(row), *self._sink(row)]
        for child in program.streams:
            if child.source == stream.name:
                lines += [self.comment(child), *self._lif(child)]
        return lines

    def _sink(self, row: Row) -> list[str]:
        """Lines with which a value without a stream takes in events."""
        operation = of(row)
        if not isinstance(operation, Sink):
            raise TypeError(f"export: {row.operation} of {row.name} takes in no events")
        self.use(row)
        return operation.c_take(self, row)

    def _lif(self, child: EventStream) -> list[str]:
        rule = Rule.of(self.streams[str(child.source)].sensor, **child.lif)
        decays = len(rule.coarse) + len(rule.fine)
        if decays > DECAYS:
            raise ValueError(
                f"export: decay_time {child.lif['decay_time']:g} us of {child.name} needs tables of "
                f"{decays * 4 / 1e6:.0f} MB. Use at most 1e9 us (17 minutes)."
            )
        potential = self.memory.add("float", f"potential_{child.name}", child.pixels)
        charged = self.memory.add("int64_t", f"charged_{child.name}", child.pixels)
        window = (reach_of(child.lif["kernel"]), 0, child.lif["stride"], *rule.grid)
        tables = ", ".join(str(self.offset(table)) for table in (rule.share, rule.coarse, rule.fine))
        limits = (
            f"{self.number(rule.threshold)}, {self.number(rule.reset)}, {tables}, {len(rule.coarse) - 1}, {rule.bits}"
        )
        self.settings.append(f"static const lif lif_{child.name} = {{{{{', '.join(map(str, window))}}}, {limits}}};")
        room = f"s->events_{child.name}, {self.capacity(child.name)}"
        return [
            "for (at = 0; at < count;) {",
            f"    i = fire(&lif_{child.name}, e, &at, count, {room}, {potential}, {charged});",
            f"    if (i) run_{child.name}(s, i, to);",
            "}",
        ]

    def answer_body(self) -> list[str]:
        program, lines = self.program, []
        for row in program.rows:
            if row.stream is None:
                lines += [self.comment(row), *self.row(row, str(row.cells))]
        out = program[program.output]
        place = "s->logits" if out.stream else self.at[program.output]
        return [*lines, f"for (k = 0; k < {out.channels}; k++) logits[k] = {place}[k];"]

    @cached_property
    def text(self) -> str:
        """network.c"""
        for name in ("digest", "time", "start", "begun"):
            self.memory.add("int64_t", name)
        self.memory.add("float", "logits", self.program[self.program.output].channels)
        for name in self.streams:
            self.work.add("event", f"events_{name}", self.capacity(name))
        for stream in self.program.streams:
            # Convolutions of later streams add to it.
            self.bodies[stream.name] = self.stream_body(stream)
        answer = self.answer_body()
        if self.bits == 32:
            # A vector may reach over the end of the last panel.
            self.offset(np.zeros(COLUMNS // 2))
        self.work.add("float", "row", self.block * self.steps + WIDE)
        if self.bits == 16:
            self.work.add("float", "decoded", self.step * COLUMNS)
        functions = [_function(f"run_{name}", _RUN, lines, name) for name, lines in self.bodies.items()]
        functions.append("#if NET_DURATION || defined(LAST)")
        functions.append(_function("answer", "struct state *s, float *logits", answer) + "#endif\n")
        if self.program.duration:
            functions.append(_function("restart", "struct state *s", self.restart))
        code = self._joined(functions)
        self._digest = hashlib.sha256(code.encode()).hexdigest()[:15]
        code = f"/* Written by gridless: see network.h. */\n#define DIGEST ((int64_t)0x{self._digest})\n{code}"
        return renamed(code, self.name)

    def _joined(self, functions: list[str]) -> str:
        """The files and the functions of this network as one text."""
        declared = "".join(f"TARGET static void run_{name}({_RUN});\n" for name in self.bodies)
        reset = "".join(f"    {line}\n" for line in self.reset)
        sizes = {
            "CHUNK": self.chunk, "BLOCK": self.block, "FACTORS": self.factors, "TAPS": self.taps, "STEPS": self.step,
            "SMALL": int(self.bits == 16), "SLOW_DECAYS": int(self.slow),
            "LONGEST": f"((int64_t)1 << {LONGEST.bit_length() - 1})", "NEVER": "(-2 * LONGEST)",
            "MOST_LANES": WIDE if self.wide else LANES,
        }  # fmt: skip
        defined = "".join(f"#define {name} {value}\n" for name, value in sizes.items())
        declared_tables, tables = self._tables()
        # For vectors of each width.
        wide = "\n".join(
            [
                *map(_read, ("simd.c", "traces.c", "products.c")), *self.functions, "", declared, *functions,
                _read("take.c").replace("@INPUT@", next(iter(self.streams))),
            ]
        )  # fmt: skip
        named = "".join(f"#define {name} NAMED({name})\n" for name in dict.fromkeys(_DEFINED.findall(wide)))
        return "\n".join(
            [
                "#if !defined(NAMED)", '#include "network.h"\n', defined, declared_tables,
                *map(_read, ("arithmetic.c", "runtime.c")),
                *([_read("functions.c")] if _CALLS.search("".join([*self.helpers, *functions])) else []),
                *self.helpers,
                _LISTENER,
                f"struct state {{\n{self.memory}\n    /* Working memory. */\n{self.work}\n}};\n",
                "\n".join([*self.settings, ""]), named, _read("widths.c"), "#endif\n",
                wide, "#if defined(LAST)", _read("interface.c").replace("@RESET@", reset), tables, "#endif\n",
            ]
        )  # fmt: skip

    @property
    def digest(self) -> str:
        """Digest of the text, without the name."""
        return self._digest if self.text else ""

    def _tables(self) -> tuple[str, str]:
        """The constants, declared before the code and written after it."""
        size, small = max(self.constants.size, 1), max(self.weights.size, 1)
        declared = (
            f"/* All constants, as the bits of floats. */\nunion constants {{\n    uint32_t bits[{size}];\n"
            f"    float value[{size}];\n}} NET_LINE;\nstatic const union constants constants;\n"
        )
        text = f"static const union constants constants = {{{{\n{self.constants.text(np.float32)}}}}};\n"
        if self.bits == 16:
            declared += f"static const int16_t small[{small}] NET_LINE;\n"
            text += f"\nstatic const int16_t small[{small}] NET_LINE = {{\n{self.weights.text(np.int16)}}};\n"
        return declared, text

    @property
    def bytes(self) -> int:
        """Bytes of the state, with working memory."""
        return self.memory.bytes + self.work.bytes


# Functions of functions.c.
_CALLS = re.compile(r"\b(exp|log|root|log1p|erf|sigmoid)_of\(")
_RUN = "struct state *s, int count, const listener *to"
# Functions and types of the code for vectors of one width.
_DEFINED = re.compile(r"^(?:(?:INLINE|APART|FREE static) \w+ (?=\w+\()|typedef \w+ )(\w+)", re.MULTILINE)
_LISTENER = (
    "/* Whom predictions are told to. */\ntypedef struct {\n    net_callback call;\n    void *user;\n} listener;\n"
)


def _function(name: str, parameters: str, lines: list[str], stream: str = "") -> str:
    text = "\n".join(f"    {line}" for line in lines)
    loops = [name for name in ("i", "j", "k", "at") if re.search(rf"\b{name}\b", text)]
    head = [f"    int {', '.join(loops)};\n"] if loops else []
    if re.search(r"\be\b", text):
        head.insert(0, f"    const event *e = s->events_{stream};\n")
    for parameter in re.findall(r"\b(s|to)\b(?=,|$)", parameters):
        if not re.search(rf"\b{parameter}\b", text):
            head.append(f"    (void){parameter};\n")
    return f"FREE static void {name}({parameters}) {{\n{''.join(head)}{text}\n}}\n"


def in_comment(text: str) -> str:
    """Text for a comment in C: one line of ASCII that neither ends the comment nor begins another."""
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /").replace("/*", "/ *")


def _halves(array: np.ndarray) -> np.ndarray:
    """Numbers of 16 bits, with 0 for those below 2^-14; see arithmetic.c."""
    return np.where(np.abs(array) < 2**-14, 0, array).astype(np.float16).view(np.int16)


def renamed(text: str, name: str) -> str:
    """The text with another prefix for net_push, NET_H and net::Stream. Options of compilers (-DNET_FUSED) stay."""
    if name == "net":
        return text
    text = re.sub(r"\bNET_(?!FUSED|NARROW)", f"{name.upper()}_", text)
    return re.sub(r"\bnet(?=_|::)|(?<=namespace )net\b", name, text)


def _read(name: str) -> str:
    return (HERE / name).read_text("utf-8")
