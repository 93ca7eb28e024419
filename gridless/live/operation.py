"""The contract of a live operation: one class in one file of `operations/` says all there is to know about it.

| part | methods |
|---|---|
| how a forward is read | `modules`, `functions` |
| cost | `multiply_adds` |
| the row in the table of the compiled loop | `fields`, `lower`; for sinks `remember` |
| the compiled loop | `body`; where they differ `answer` and `restart` |
| C | `c`, `c_functions`; for sinks `c_take` |
| test | `example` |

A body is a plain function of Python that Numba compiles: `body(i, f, d, r, s, first, n, lane)` computes row r of the
table (see `table.py`) for n events of the stream s, from event `first` of its buffer on; or for n cells, where s is -1.
Vectors have `lane` floats. Methods import what only compiled code needs: a network is read without Numba.

Operations of the same kind are a family: `Elementwise` and `Sink`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gridless.live.rows import Row
from gridless.live.table import ROW
from gridless.live.values import Unknown

Body = Callable[..., Any]


def own_fields(count: int) -> range:
    """Where the fields of a row that only its operation knows begin: count of them, in the order of `fields`."""
    return range(len(ROW), len(ROW) + count)


class Operation:
    """One operation. Everything has a default but its name, `body`, `c` and `example`."""

    name: str = ""

    # Layers of torch or gridless and functions (or methods) of torch, by name, with what reads them: a function of the
    # `RowBuilder`, the layer, and the arguments. Several operations may read a function: one that is not meant returns
    # NotImplemented. A tuple stands for `module` and `function` as the readers.
    modules: dict[type, Callable[..., Any]] | tuple[type, ...] = {}
    functions: dict[str, Callable[..., Any]] | tuple[str, ...] = {}

    # Names of the fields of the table that only this operation has.
    fields: tuple[str, ...] = ()

    # Whether the value may take the place of an input of the same size, in the compiled loop and in C.
    over_input = False
    over_input_in_c = False
    # Whether the value is a part of its input, so that neither may be changed in place.
    is_part = False
    # Whether the value is in the events themselves, and whether the operation takes it from there.
    in_events = False
    reads_events = False
    # Whether its cells differ from those of an empty window elsewhere than those of its input.
    own_mask = False
    # Whether it has a window, whether it is the newest value of its input, and whether it takes in what events bring.
    has_window = False
    is_newest = False
    is_sink = False
    # Whether `number` of its row is 1 in the very first answer, of an empty window, and 0 after it.
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
        """Of an event of the stream (without a stream: of an answer); and of an event of the stream that it sees."""
        return 0, 0

    def view(self, lowered: Any, row: Row) -> tuple[int, int] | None:
        """Of a value that is a part of its input's place: floats and cells to skip; None of a value with its own."""
        return None

    def lower(self, lowered: Any, row: Row, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """The entries of the table: as a rule one, with fields of the operation added."""
        return [entry]

    def body(self) -> Body:
        """What the compiled loop runs."""
        raise NotImplementedError

    def answer(self) -> Body | None:
        """What it runs for a row without a stream, where that is not the body for all cells."""
        return None

    def restart(self) -> Body | None:
        """What it runs when a window begins."""
        return None

    # C functions that the lines call, once for each network.
    c_functions: str = ""

    def c(self, writer: Any, row: Row, n: str) -> list[str]:
        """The lines of C that compute a row: of `n` events e[0], e[1] ..., or cells; i, j, k and at are free."""
        raise NotImplementedError

    def example(self, net: Any) -> Callable[..., Any]:
        """A part of a network for the tests: a function of features (S, 6) of a stream, geometry and memory.

        Its layers become attributes of `net`, which has a `plan` with the streams `camera` and `stream` (of `sensor`
        pixels), and `polarity(geometry)`, the polarities of the camera's events.
        """
        raise NotImplementedError


class Elementwise(Operation):
    """A function of each element: `numba` of a float, `c` of `x` as an expression of C.

    `settings`: of torch's layer, by the argument of the function; `numba` takes them after x, and `c` has them by name.
    `expected`: settings with which alone the layer is known.
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

    def body(self) -> Body:
        import numpy as np

        from gridless.kernels.compile import njit
        from gridless.live.panels import places
        from gridless.live.table import PITCH, WEIGHT, C

        function = njit(nogil=True, error_model="numpy", inner=True)(self.numba)

        def plain(i, f, d, r, s, first, n, lane):
            c, pitch = i[r + C], i[r + PITCH]
            to, a, _ = places(i, r, first)
            for j in range(n):
                for k in range(c):
                    f[to + j * pitch + k] = np.float32(function(f[a + j * pitch + k]))
                for k in range(c, pitch):
                    f[to + j * pitch + k] = 0.0

        def with_setting(i, f, d, r, s, first, n, lane):
            c, pitch, setting = i[r + C], i[r + PITCH], f[i[r + WEIGHT]]
            to, a, _ = places(i, r, first)
            for j in range(n):
                for k in range(c):
                    f[to + j * pitch + k] = np.float32(function(f[a + j * pitch + k], setting))
                for k in range(c, pitch):
                    f[to + j * pitch + k] = 0.0

        return with_setting if self.settings else plain

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
    """A value without a stream, which takes in the value of each event of its input when it happens: that is `body`.
    `answer` says how it is read."""

    is_sink = True

    def remember(self, lowered: Any, row: Row) -> dict[str, Any]:
        """Fields of the table with what it remembers, the same where events come in and where it is read."""
        raise NotImplementedError

    def c_take(self, writer: Any, row: Row) -> list[str]:
        """The lines of C that take in `count` events; `c` reads the value."""
        raise NotImplementedError
