# `make demo` and `make test` need only Python 3.11 or newer; everything else they set up themselves.
PYTHON ?= python3
BIN := .venv/bin
# Python writes the bytecode of what is imported, and no process compiles it again; pip would compile all there is.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-fast test-gpu fuzz lint format docs bench reproduce wheel soak clean

.venv/.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	touch $@

demo: .venv/.done
	$(BIN)/gridless demo --out demo

# Without a GPU the Triton kernels run in Triton's interpreter, in the second line: Triton must be told before it is
# imported.
INTERPRETED := tests/augment/test_stateless.py tests/geometry/test_gpu.py tests/geometry/test_lif.py \
	tests/geometry/test_causal.py tests/geometry/test_voxels.py tests/ops tests/training/test_steps.py

test: .venv/.done
	$(BIN)/python -m pytest -n 2 --dist worksteal
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n 2 --dist worksteal -k "gpu or interpreted" $(INTERPRETED)

# Without what compiles C, starts processes or trains: for while one works.
test-fast: .venv/.done
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

SECONDS ?= 600

fuzz: .venv/.done
	$(BIN)/python tests/fuzz.py --seconds $(SECONDS)

# Everything that has GPU cases, with the Python that is there: GPU machines often come with theirs, and without network.
# Scripts that tests start find the package by PYTHONPATH, installed or not.
test-gpu:
	PYTHONPATH="$(CURDIR):$$PYTHONPATH" $(PYTHON) -m pytest -n auto --dist worksteal \
		tests/test_plan.py tests/test_devices.py tests/kernels tests/structures \
		tests/augment/test_stateless.py tests/geometry tests/ops tests/nn tests/models tests/compat \
		tests/data/test_precompute.py tests/training/test_steps.py tests/training/test_capture.py \
		"tests/test_docs.py::test_the_python_of_a_page_runs[docs/tutorials/fast.md]"

lint: .venv/.done
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright

format: .venv/.done
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

docs: .venv/.done
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/mkdocs build --strict

bench: .venv/.done
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[peers]"
	for name in geometry conv event_files event_conv streaming; do $(BIN)/python benchmarks/$$name.py || exit 1; done

# The paper's tables and figures: what this machine can run and nobody has run yet, then the page docs/reproduction.md.
# GPU machines often come with their own Python: make reproduce BIN=/usr/bin DATA=DIR
DATA ?= ../shared/data

reproduce: $(if $(filter .venv/bin,$(BIN)),.venv/.done)
	$(BIN)/python benchmarks/reproduction.py run --data $(DATA)

soak: .venv/.done
	$(BIN)/python benchmarks/streaming.py --soak 1000000000

wheel: .venv/.done
	rm -rf dist && $(BIN)/python -m build --wheel

clean:
	rm -rf .venv dist site demo fuzz-findings
