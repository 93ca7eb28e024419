"""The Python of the README and of every page runs, block after block; links lead somewhere; no page is forgotten."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import typer

import gridless as gl
from gridless import weights
from gridless.augment.events import EventTransform
from gridless.cli.main import COMMANDS
from gridless.training import Recipe, load_recipe

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
# A block is skipped where the line before it says `<!-- gpu -->` or `<!-- needs PACKAGE -->` and there is none, or
# `<!-- not run: reason -->`.
BLOCK = re.compile(r"(?:<!-- (gpu|needs \w+|not run: [^>]+) -->\n+)?^```python\n(.*?)^```$", re.S | re.M)
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL = [path.relative_to(ROOT).as_posix() for path in FILES]
PAGES = [page for page in ALL if "```python" in (ROOT / page).read_text()]


def blocks(page: str) -> list[str]:
    """The blocks that can run here, each preceded by as many empty lines as put its own lines at their numbers."""
    text = (ROOT / page).read_text()
    sources = []
    for match in BLOCK.finditer(text):
        kind, _, package = (match[1] or "").partition(" ")
        runs = {"": True, "gpu": torch.cuda.is_available(), "needs": kind == "needs" and find_spec(package) is not None}
        if runs.get(kind, False):
            sources.append("\n" * text[: match.start(2)].count("\n") + match[2])
    return sources


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    # Settings of a page must not outlive it.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    torch.manual_seed(0)
    names: dict = {"__name__": "__main__"}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)


def test_the_readme_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    code = blocks("README.md")
    expected = re.findall(r"^print\(.*\) +# (.+)$", "\n".join(code), re.M)
    assert len(expected) > 1
    names: dict = {"__name__": "__main__"}
    try:
        for block in code:
            exec(compile(block, "README.md", "exec"), names)
    finally:
        gl.compat.disable()
    assert capsys.readouterr().out.splitlines() == expected


def test_most_of_the_tutorials_are_among_them():
    tutorials = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "tutorials").glob("*.md")}
    assert tutorials <= set(PAGES)
    assert all(blocks(page) for page in tutorials)


@pytest.mark.parametrize("page", ALL)
def test_links_and_pictures_lead_to_files(page: str):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target


def test_the_tree_in_contributing_is_the_tree():
    tree = re.search(r"^gridless/\n(?:[├└│].*\n)+", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert tree is not None
    folder = ROOT / "gridless"
    assert [name for name in re.findall(r"^[├└]── (\S+)", tree[0], re.M) if not (folder / name).exists()] == []
    here = {path.stem for path in folder.iterdir() if not path.name.startswith(("__", "py.typed"))}
    assert {name for name in here if not re.search(rf"\b{name}\b", tree[0])} == set()


def test_code_that_paper_to_code_names_exists():
    """Every `path.py` and `path.py: name` in the tables of that page."""
    text = (ROOT / "docs" / "paper-to-code.md").read_text()
    named = re.findall(r"`((?:gridless|tests|benchmarks|recipes|docs)/[\w/.-]+)(?:: ([\w.]+))?`", text)
    assert len(named) > 30
    for path, name in named:
        file = ROOT / path
        assert file.exists(), path
        if name:
            last = name.split(".")[-1]
            assert re.search(rf"\b(?:def|class) {last}\b|^\s*{last}\b", file.read_text(), re.M), f"{path}: {name}"


def test_event_transforms_of_the_table_are_where_the_page_says():
    text = (ROOT / "docs" / "data.md").read_text().split("## Augmentation of events")[1]
    place = re.search(r"`gl\.([\w.]+)`", text)
    assert place is not None
    module: Any = import_module(f"gridless.{place[1]}")
    cells = [row.split("|")[1] for row in re.findall(r"^\| `.*", text, re.M)]
    names = [name for cell in cells for name in re.findall(r"`(\w+)\(", cell)]
    assert len(names) > 15
    for name in names:
        assert issubclass(getattr(module, name), EventTransform), name


def test_every_public_name_is_on_a_page_of_the_reference():
    """By itself, or with all of its module."""
    text = "\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    shown = [resolve_name(target) for target in re.findall(r"^::: (\S+)$", text, re.M)]
    whole = {value.__name__ for value in shown if inspect.ismodule(value)}
    for module in [gl, *(getattr(gl, name) for name in gl._MODULES)]:
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            is_shown = any(value is other for other in shown) or getattr(value, "__module__", "") in whole
            assert is_shown, f"{module.__name__}.{name}"


def options(command: str) -> set[str]:
    module, _, function = COMMANDS[command][0].partition(":")
    app = typer.Typer(add_completion=False)
    app.command()(getattr(import_module(module), function))
    parameters = typer.main.get_command(app).params
    return {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}


def test_every_option_of_every_command_is_on_a_page():
    written = {word for path in (ROOT / "docs").rglob("*.md") for word in re.findall(r"--[\w-]+", path.read_text())}
    for command in COMMANDS:
        assert {option for option in options(command) if option.startswith("--")} <= written, command


def from_benchmarks(name: str) -> Any:
    spec = spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_result_is_a_table_for_readers(monkeypatch: pytest.MonkeyPatch):
    page = from_benchmarks("page")
    text = page.benchmarks()
    assert not re.findall(r"\b\w+_h\d\b|\babout \w+:|\bscipy\b|\bpyg\b|\b1M\b", text)
    for script in re.findall(r"^By (`.*?\.py`)\. ", text, re.M):
        assert all((ROOT / path).is_file() for path in re.findall(r"`(\S+)`", script)), script
    assert text.count("\nBy `benchmarks/") == text.count("\n### ")
    assert page.number(12345.6) == "12,346"
    assert page.number(float("nan")) == "not measured"
    del page.TABLES[page.digits]
    with pytest.raises(ValueError, match=r"\['nmnist_folds'\]"):
        page.benchmarks()


def test_the_readme_shows_the_results_and_fits_a_screen_or_three():
    text, readme = (ROOT / "README.md").read_text(), from_benchmarks("readme")
    assert readme.BEGIN + "\n" + readme.table() + "\n" + readme.END in text, "run benchmarks/readme.py"
    assert len(text.splitlines()) <= 120


def test_the_page_of_other_networks_shows_the_results():
    readme = from_benchmarks("readme")
    text = readme.NETWORKS.read_text()
    assert readme.BEGIN + "\n" + readme.networks() + "\n" + readme.END in text, "run benchmarks/readme.py"


def test_the_cards_say_what_is_saved_with_the_weights():
    page = from_benchmarks("page")
    assert (ROOT / "docs" / "models.md").read_text() == page.cards(), "run benchmarks/page.py"


@pytest.mark.parametrize("name", weights.available())
def test_shipped_weights_can_be_trained_again_by_the_recipe_of_their_name(name: str):
    about = weights.read_about(name)[1]
    assert Recipe.from_dict({"model": about["model"], **about["recipe"]}) == load_recipe(name)
    assert about["split"] in ("train", "fit")
    assert about["held_out"]["how"]
    assert about["cost"]["parameters"] == sum(p.numel() for p in gl.load(name).parameters())


def test_commands_on_the_pages_exist_with_their_options():
    shells = [
        block for page in ALL for block in re.findall(r"^```sh\n(.*?)^```$", (ROOT / page).read_text(), re.S | re.M)
    ]
    shown = [line for block in shells for line in re.findall(r"^gridless (.*)$", block, re.M)]
    assert len(shown) > 10
    assert {line.split()[0] for line in shown} <= set(COMMANDS)
    for name in COMMANDS:
        known = options(name)
        for line in shown:
            tokens = line.partition(" #")[0].split()
            if tokens[0] == name:
                assert {word for word in tokens if word.startswith("--")} <= known, line
    described = (ROOT / "docs" / "command-line.md").read_text()
    assert all(f"| `{name}` |" in described for name in COMMANDS)


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed (make docs)")
@pytest.mark.skipif(find_spec("mkdocstrings") is None, reason="mkdocstrings is not installed (make docs)")
def test_the_site_builds_without_a_warning(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert (tmp_path / "paper-to-code" / "index.html").is_file()
