"""python wasm.py PROGRAM ARGUMENTS: run a WebAssembly program with wasmtime, without a browser."""

import sys


def main(arguments: list[str]) -> int:
    import wasmtime  # type: ignore

    engine = wasmtime.Engine()
    linker, store, settings = wasmtime.Linker(engine), wasmtime.Store(engine), wasmtime.WasiConfig()
    linker.define_wasi()
    settings.argv = arguments
    settings.inherit_stdout()
    settings.inherit_stderr()
    store.set_wasi(settings)
    instance = linker.instantiate(store, wasmtime.Module.from_file(engine, arguments[0]))
    try:
        instance.exports(store)["_start"](store)  # type: ignore[operator]
    except wasmtime.ExitTrap as end:
        return end.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
