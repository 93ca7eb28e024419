"""CSV and other text: one event a line, columns apart by a comma, semicolon, tab or spaces, no cell empty.

Lines that begin with `#` or `%` come first and are skipped, save `%geometry:WIDTH,HEIGHT`, which is the sensor. A line
of names (x, y, t, p, in any order, with the aliases that `Events.of` knows) says which column is which; without one the
two usual orders are told apart by their values: `t x y p` and `x y p t`. A time with a decimal point is in seconds;
where other numbers have one (12.0), or exponents (1.5e+03), times are in seconds unless all are whole. Polarity may be
true and false.
"""

from __future__ import annotations

import codecs
import io
import re

import numpy as np

from gridless.data.readers.events.base import File, Recording, columns
from gridless.kernels.compile import njit
from gridless.structures.events import ALIASES, as_polarity

ORDERS = ("txyp", "xypt")
MAX_COLUMNS = 64
MAX_LINE = 1 << 16
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|true|false", re.IGNORECASE)
BOOLEAN = re.compile(rb"\b(?:(true)|false)\b", re.IGNORECASE)
EXPONENT = re.compile(rb"[\d.][eE][-+]?\d")
FAULTS = (
    "",
    "line {line} must hold whole numbers (only times may have a decimal point)",
    "line {line} does not have {wanted} columns",
    "line {line} has a number that is too large",
    "line {line} has an empty cell",
)


def sniff(head: bytes) -> bool:
    """UTF-8 without control characters, and numbers or the names of columns in it."""
    text = head[: head.rfind(b"\n") + 1] or head
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    control = re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    return not control and bool(re.search(rb"[0-9]|\bx\b", text, re.IGNORECASE))


def read(file: File) -> Recording:
    start, sensor = _comments(file)
    names, first = _names(file, start)
    while first < len(file) and file.data[first] in b"\r\n":
        first += 1
    if first >= len(file):
        if names is None:
            raise file.error("has neither events nor names of columns", start)
        return Recording(np.empty((0, 2), np.int32), np.empty(0, np.int64), np.empty(0, bool), sensor)
    cells, delimiter = _cells(file, first)
    width = len(cells)
    if width < 4 or width > MAX_COLUMNS:
        raise file.error(f"an event has x, y, t and p, but the first line has {width} columns", first)
    if names is not None and width != names["columns"]:
        raise file.error(f"the first line of events has {width} columns, but there are {names['columns']} names", first)
    points = [i for i, cell in enumerate(cells) if "." in cell]
    decimal = points[0] if len(points) == 1 and (names is None or points[0] == names["t"]) else -1
    values, decimal = _numbers(file, first, width, decimal, delimiter)
    if names is None:
        if not len(values):
            raise file.error("has no whole line of events", first)
        names = _guessed(file, values, decimal, first)
    if decimal >= 0 and decimal != names["t"]:
        raise file.error("only times may have a decimal point", first)
    x, y = values[:, names["x"]], values[:, names["y"]]
    for name, value in (("x", x), ("y", y)):
        bad = np.flatnonzero((value < -(2**31)) | (value >= 2**31))
        if len(bad):
            raise file.error(f"row {bad[0]} has {name} = {value[bad[0]]}, which is no pixel")
    try:
        polarity = as_polarity(values[:, names["p"]], "polarity")
    except ValueError as error:
        raise file.error(str(error), first) from None
    return Recording(columns(x, y), np.ascontiguousarray(values[:, names["t"]]), polarity, sensor)


def _line_end(file: File, start: int) -> int:
    at, step = start, 256
    while at < len(file):
        line_ends = np.flatnonzero(file.data[at : at + step] == 10)
        if len(line_ends):
            return at + int(line_ends[0]) + 1
        at, step = at + step, 2 * step
    return len(file)


def _cells(file: File, start: int) -> tuple[list[str], str]:
    """The cells of a line, and what is between them. One separator too many may end the line."""
    line = file.bytes(start, min(_line_end(file, start), start + MAX_LINE)).decode("latin-1").strip(" \r\n")
    delimiter = next((c for c in ";,\t" if c in line), " ")
    if delimiter == " ":
        return line.split(), delimiter
    return [cell.strip() for cell in line.removesuffix(delimiter).split(delimiter)], delimiter


def _comments(file: File) -> tuple[int, tuple[int, int] | None]:
    # Some programs mark UTF-8 by three bytes.
    start, sensor = 3 * (file.head[:3] == codecs.BOM_UTF8), None
    while start < len(file) and file.data[start] in b"#%\r\n":
        end = _line_end(file, start)
        said = re.match(rb"%\s*geometry\s*:\s*(\d{1,5})\s*,\s*(\d{1,5})\s*$", file.bytes(start, min(end, start + 100)))
        if said:
            sensor = int(said[1]), int(said[2])
            if not all(sensor):
                raise file.error(f"the geometry says the sensor is {sensor[0]} x {sensor[1]}", start)
        start = end
    return start, sensor


def _names(file: File, start: int) -> tuple[dict[str, int] | None, int]:
    """The column of each field and their number, if the first line names them, and where the events begin."""
    cells, _ = _cells(file, start)
    if not re.search(r"[A-Za-z]", "".join(cells)) or all(map(NUMBER.fullmatch, cells)):
        return None, start
    names = [cell.strip(' "').lower() for cell in cells]
    columns = {name: [i for i, w in enumerate(names) if w in aliases] for name, aliases in ALIASES.items()}
    wrong = [name for name, at in columns.items() if len(at) != 1]
    if wrong:
        raise file.error(f"the names {', '.join(names)[:80]} leave open which column is {' and '.join(wrong)}", start)
    return {"columns": len(names), **{name: at[0] for name, at in columns.items()}}, _line_end(file, start)


def _numbers(file: File, start: int, width: int, decimal: int, delimiter: str) -> tuple[np.ndarray, int]:
    """All numbers as (rows, width) int64; of the column `decimal` (-1: none), which is returned, in millionths."""
    body = file.data[start:]
    if body[-1] != 10 and file.cut:
        # Half a line may look like a whole one.
        body = body[: body.tobytes().rfind(b"\n") + 1]
    elif body[-1] != 10:
        body = np.append(body, np.uint8(10))
    # A number has a digit and something behind it: room for all whole rows, and for one with a fault.
    values = np.empty((min(int(np.count_nonzero(body == 10)), len(body) // (2 * width) + 1), width), np.int64)
    rows, fault, position = (int(v) for v in _parse(body, width, decimal, ord(delimiter), values))
    if fault == 1:
        text = BOOLEAN.sub(lambda word: (b"1" if word[1] else b"0").rjust(len(word[0])), body.tobytes())
        rows, fault, position = (
            int(v) for v in _parse(np.array(bytearray(text)), width, decimal, ord(delimiter), values)
        )
        if fault == 1 and (text[position : position + 1] == b"." or EXPONENT.search(text)):
            return _with_points(file, text, start, width, decimal, delimiter)
    if fault:
        line = int(np.count_nonzero(file.data[: start + position] == 10)) + 1
        raise file.error(FAULTS[fault].format(line=line, wanted=width), start + position)
    return values[:rows], decimal


def _with_points(
    file: File, body: bytes, start: int, width: int, decimal: int, delimiter: str
) -> tuple[np.ndarray, int]:
    """`_numbers` where some are written as 1.5e+03, or whole ones as 12.0."""
    try:
        between = None if delimiter == " " else delimiter
        real = np.loadtxt(io.BytesIO(body), np.float64, None, between, ndmin=2, encoding="latin-1")
    except ValueError as error:
        raise file.error(f"a value is not a number: {error}", start) from None
    if real.shape[1] != width:
        raise file.error(f"lines have {real.shape[1]} columns, but the first has {width}", start)
    fractions = np.flatnonzero((real != np.rint(real)).any(0))
    if len(fractions) > 1 or (decimal >= 0 and len(fractions) and fractions[0] != decimal):
        raise file.error("only times may have decimals", start)
    decimal = int(fractions[0]) if len(fractions) else decimal
    if decimal >= 0:
        real[:, decimal] *= 1e6
    # Beyond, a float64 tells no whole numbers apart; this is also true of what is not finite.
    if not (np.abs(real) <= 2.0**53).all():
        raise file.error("has a number that is too large", start)
    return np.rint(real).astype(np.int64), decimal


def _guessed(file: File, values: np.ndarray, decimal: int, at: int) -> dict[str, int]:
    fits = []
    for order in ORDERS if values.shape[1] == 4 else ():
        t, p = values[:, order.index("t")], values[:, order.index("p")]
        if decimal in (-1, order.index("t")) and p.min() >= -1 and p.max() <= 1 and (t[1:] >= t[:-1]).all():
            fits.append(order)
    if len(fits) != 1:
        raise file.error("the order of the columns is unknown. Begin the file with a line of names, e.g. t,x,y,p.", at)
    return {name: fits[0].index(name) for name in "xytp"}


@njit(nogil=True, cache=True)
def _parse(data, width, decimal, delimiter, values):  # type: ignore[no-untyped-def]
    """Rows written, the kind of fault (0: none), and its byte. `data` ends in a line feed."""
    row, column = 0, 0
    # Unsigned, so that no index is tested for being negative.
    i, size = np.uint64(0), np.uint64(len(data))
    one = np.uint64(1)
    while i < size:
        c = np.int64(data[i])
        if c < 48 or c > 57:
            if c == 10:
                if column == width:
                    row += 1
                elif column != 0:
                    return row, 2, i
                column = 0
                i += one
                continue
            if c == delimiter and c != 32:
                return row, 4, i
            if c == 32 or c == 9 or c == 13:
                i += one
                continue
        if column == width:
            return row, 2, i
        start = i
        negative = c == 45
        if negative or c == 43:
            i += one
            start = i
        value = np.int64(0)
        digit = np.int64(data[i]) - 48
        while 0 <= digit <= 9:
            value = value * 10 + digit
            i += one
            digit = np.int64(data[i]) - 48
        digits = i - start
        if digits > 18:
            value = _large(data, start, i)
            if value < 0:
                return row, 3, start
        if column == decimal:
            value, digits, i = _fraction(data, value, digits, i)
            if value < 0:
                return row, 3, start
        c = np.int64(data[i])
        if c != delimiter and c != 10:
            blank = False
            while (c == 32 or c == 13 or c == 9) and c != delimiter:
                blank = True
                i += one
                c = np.int64(data[i])
            if c != delimiter and c != 10 and not (blank and delimiter == 32):
                return row, 1, i
        if digits == 0:
            return row, 1, i
        values[row, column] = -value if negative else value
        column += 1
        i += np.uint64(c == delimiter)
    return row, 0, i


@njit(nogil=True, cache=True, inner=True)
def _large(data, start, end):  # type: ignore[no-untyped-def]
    """The number whose digits are data[start:end], or -1 where it is 2**63 or more."""
    value = np.int64(0)
    for i in range(start, end):
        digit = np.int64(data[i]) - 48
        if value > (np.int64(9223372036854775807) - digit) // 10:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@njit(nogil=True, cache=True, inner=True)
def _fraction(data, value, digits, i):  # type: ignore[no-untyped-def]
    """Seconds `value` and the decimals at `i` as microseconds, rounded; -1 where they are too many."""
    if value > 9_000_000_000_000:
        return np.int64(-1), digits, i
    fraction, places, half = np.int64(0), 0, 0
    if data[i] == 46:
        i += np.uint64(1)
        digit = np.int64(data[i]) - 48
        while 0 <= digit <= 9:
            if places < 6:
                fraction = fraction * 10 + digit
            elif places == 6:
                half = np.int64(digit >= 5)
            places += 1
            digits += np.uint64(1)
            i += np.uint64(1)
            digit = np.int64(data[i]) - 48
    while places < 6:
        fraction *= 10
        places += 1
    return value * 1_000_000 + fraction + half, digits, i
