"""The contract of a live operation: one class in one file of `operations/`.

| part | methods |
|---|---|
| reading a forward | `modules`, `functions` |
| cost | `multiply_adds` |
| the row in the table of the compiled loop | `fields`, `lower`; for sinks `remember` |
| the compiled loop | `body`, and where needed `answer` and `restart` |
| C | `c`, `c_functions`; for sinks `c_take` |
| test | `example` |

A body is a static method that Numba compiles: `body(i, f, d, r, s, first, n, lane)` computes row r of the table (see
`table.py`) for n events of the stream s, from event `first` of its buffer on; or for n cells, where s is -1. Vectors
have `lane` floats.

Two families share most of this: `Elementwise` and `Sink`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from gridless.kernels.compile import njit
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.table import PITCH, ROW, WEIGHT, C
from gridless.live.values import Unknown

Body = Callable[..., Any]


def own_fields(count: int) -> range:
    """Indices of the fields that only one operation has, in the order of its `fields`."""
    return range(len(ROW), len(ROW) + count)


class Operation:
    """One operation. `name`, `body`, `c` and `example` have no default."""

    name: str = ""

    # Readers of layers of torch or gridless, and of functions (or methods) of torch by name. A reader takes the
    # `RowBuilder`, the layer, and the arguments. Several operations may read a function: a reader that does not apply
    # returns NotImplemented. With a tuple, `module` and `function` are the readers.
    modules: dict[type, Callable[..., Any]] | tuple[type, ...] = {}
    functions: dict[str, Callable[..., Any]] | tuple[str, ...] = {}

    # Names of the table's fields that only this operation has.
    fields: tuple[str, ...] = ()

    # The value may overwrite an input of the same size, in the compiled loop and in C.
    over_input = False
    over_input_in_c = False
    # The value is a part of its input, so that neither may be changed in place.
    is_part = False
    # The value is part of the events themselves; the operation reads it from there.
    in_events = False
    reads_events = False
    # Its cells differ from an empty window at other places than those of its input.
    own_mask = False
    # It has a window; it is the newest value of its input; it takes in the events of its input.
    has_window = False
    is_newest = False
    is_sink = False
    # `number` of its row is 1 in the very first answer, of an empty window, and 0 after it.
    settles = False

    def layer_readers(self) -> dict[type, Callable[..., Any]]:
        return self.modules if isinstance(self.modules, dict) else dict.fromkeys(self.modules, self.module)

    def function_readers(self) -> dict[str, Callable[..., Any]]:
        return self.functions if isinstance(self.functions, dict) else dict.fromkeys(self.functions, self.function)

    def module(self, r: Any, layer: Any, *args: Any) -> Any:
        """Read a layer of `modules`."""
        raise NotImplementedError

    def function(self, r: Any, *args: Any, **named: Any) -> Any:
        """Read a function of `functions`."""
        raise NotImplementedError

    def multiply_adds(self, row: Row) -> tuple[int, int]:
        """Multiply-adds for each event of the stream (or each answer), and for each event of the source stream."""
        return 0, 0

    def view(self, lowered: Any, row: Row) -> tuple[int, int] | None:
        """Floats and cells of the input before a value that lies inside it; None for a value with its own buffer."""
        return None

    def lower(self, lowered: Any, row: Row, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """The entries of the table: as a rule one, with the operation's fields."""
        return [entry]

    # The compiled loop runs `body`; for a row without a stream `answer`, else the body for all its cells; and `restart`
    # when a window begins.
    body: Any
    answer: Body | None = None
    restart: Body | None = None

    # C functions that the lines of `c` call, written once for each network.
    c_functions: str = ""

    def c(self, writer: Any, row: Row, n: str) -> list[str]:
        """The lines of C that compute a row for `n` events e[0], e[1] ..., or cells. i, j, k and at are free."""
        raise NotImplementedError

    def example(self, net: Any) -> Callable[..., Any]:
        """Make a part of a network for the tests: a function of features (S, 6) of a stream, geometry and memory.

        The layers become attributes of `net`. `net` has a `plan` with the streams `camera` and `stream` (of `sensor`
        pixels), and `polarity(geometry)`, the polarities of the camera's events.
        """
        raise NotImplementedError


class Elementwise(Operation):
    """A function of each element: `numba` takes a float, `expression` is C of a float `x`.

    `settings`: names of the settings of torch's layer, by argument; `numba` takes them after x, C has them by name.
    `expected`: values that settings must have.
    """

    over_input = over_input_in_c = True
    expected: dict[str, Any] = {}
    settings: dict[str, str] = {}
    expression: str = ""

    @staticmethod
    def numba(x: Any, *settings: Any) -> Any:
        raise NotImplementedError

    def module(self, r: Any, layer: Any, x: Any) -> Row:
        if any(getattr(layer, key) != value for key, value in self.expected.items()):
            raise Unknown(f"layer {r.name!r} ({layer})")
        return r.same(x, self.name, {key: getattr(layer, name) for key, name in self.settings.items()})

    def function(self, r: Any, x: Any, *args: Any, inplace: bool = False, **named: Any) -> Row:
        names = list(self.settings.values()) + [key for key in self.expected if key not in self.settings.values()]
        values = dict(zip(names, args, strict=False)) | named
        if len(args) > len(names) + 1 or (len(args) > len(names) and args[-1] is not False) or {*named} - {*names}:
            raise Unknown(f"{r.name} ({self.name} with settings: use the layer)")
        for key, value in self.expected.items():
            if values.get(key, value) != value:
                raise Unknown(f"{r.name} with {key}={values[key]}")
        layer = next(iter(self.layer_readers()), None)
        if self.settings and layer is not None:
            values = {name: getattr(layer(), name) for name in names} | values
        return r.same(x, self.name, {key: values[name] for key, name in self.settings.items()})

    def lower(self, lowered: Any, row: Row, entry: dict[str, Any]) -> list[dict[str, Any]]:
        if self.settings:
            entry["weight"] = lowered.flat.add("weight", [row.settings[key] for key in self.settings])
        return [entry]

    @cached_property
    def body(self) -> Body:
        function = njit(nogil=True, error_model="numpy", inner=True)(self.numba)
        has_setting = bool(self.settings)

        def body(i, f, d, r, s, first, n, lane):
            c, pitch, setting = i[r + C], i[r + PITCH], i[r + WEIGHT]
            to, a, _ = places(i, r, first)
            for j in range(n):
                for k in range(c):
                    x = f[a + j * pitch + k]
                    f[to + j * pitch + k] = np.float32(function(x, f[setting]) if has_setting else function(x))
                for k in range(c, pitch):
                    f[to + j * pitch + k] = 0.0

        return body

    @property
    def c_functions(self) -> str:  # type: ignore[override]
        parameters = "".join(f", float {key}" for key in self.settings)
        return f"INLINE float f_{self.name}(float x{parameters}) {{ return (float)({self.expression}); }}\n"

    def c(self, writer: Any, row: Row, n: str) -> list[str]:
        settings = "".join(f", {writer.number(row.settings[key])}" for key in self.settings)
        x, out = writer.at[row.inputs[0]], writer.buffer(row)
        return [f"for (k = 0; k < {n} * {row.channels}; k++) {out}[k] = f_{row.operation}({x}[k]{settings});"]

    def example(self, net: Any) -> Callable[..., Any]:
        net.part = next(iter(self.layer_readers()))()
        return lambda x, geometry, memory: net.part(x)


class Sink(Operation):
    """A value without a stream. `body` takes in the value of each event of its input; `answer` computes the value."""

    is_sink = True

    def remember(self, lowered: Any, row: Row) -> dict[str, Any]:
        """Fields of the table for its memory, shared by the entries that take in events and that compute the value."""
        raise NotImplementedError

    def c_take(self, writer: Any, row: Row) -> list[str]:
        """The lines of C that take in `count` events; `c` reads the value."""
        raise NotImplementedError
