"""`gl.compat.enable` answers for libraries that are not installed, and only for those."""

import importlib
import importlib.util
import subprocess
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import gridless as gl
from gridless.compat import aliases


@pytest.fixture
def names():
    """The names that are answered, while the test runs."""
    yield gl.compat.enable()
    gl.compat.disable()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder on the path with a package `pointops` that is not ours."""
    (tmp_path / "pointops").mkdir()
    (tmp_path / "pointops" / "__init__.py").write_text("ours = False\n")
    (tmp_path / "pointops" / "grouping.py").write_text("ours = False\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    gl.compat.disable()
    for name in [name for name in sys.modules if name.partition(".")[0] == "pointops"]:
        del sys.modules[name]


def test_imports_find_our_modules_once(names):
    for name in names:
        module = importlib.import_module(name)
        assert module is importlib.import_module(gl.compat.LIBRARIES[name])
    if "spconv" in names:
        from spconv.pytorch.modules import is_spconv_module  # pyright: ignore[reportMissingImports]

        from gridless.compat.spconv.pytorch import modules

        assert is_spconv_module is modules.is_spconv_module
        assert sys.modules["spconv.pytorch.modules"] is modules
        # Its own spec is what reload and pickle need.
        assert modules.__spec__ is not None
        assert modules.__spec__.name == "gridless.compat.spconv.pytorch.modules"


def test_specs_exist_for_what_is_covered_and_for_nothing_else(names):
    assert {"pointops", "torch_scatter"} <= set(names)
    assert importlib.util.find_spec("torch_scatter.composite") is not None
    assert importlib.util.find_spec("torch_scatter.nothing") is None
    with pytest.raises(ModuleNotFoundError, match=r"pointops\.nothing"):
        importlib.import_module("pointops.nothing")
    # There is no distribution, and who asks for one is told so.
    with pytest.raises(PackageNotFoundError):
        version("pointops")


def test_disable_forgets_them_again():
    gl.compat.enable()
    importlib.import_module("pointops")
    gl.compat.disable()
    assert "pointops" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("pointops")


def test_installed_packages_keep_their_names(installed):
    assert "pointops" not in gl.compat.enable()
    assert importlib.import_module("pointops").ours is False
    assert importlib.import_module("pointops.grouping").ours is False


def test_a_forced_name_is_ours_until_it_is_disabled(installed):
    other = importlib.import_module("pointops")
    assert "pointops" in gl.compat.enable(force=("pointops",))
    assert importlib.import_module("pointops").__name__ == "gridless.compat.pointops"
    gl.compat.disable()
    assert importlib.import_module("pointops") is other


def test_single_names_can_be_asked_for():
    try:
        assert gl.compat.enable("pointops") == ("pointops",)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("torch_scatter")
        with pytest.raises(ValueError, match="minkowski"):
            gl.compat.enable("minkowski")
    finally:
        gl.compat.disable()


def test_former_names_give_the_same_module_below_packages():
    assert importlib.import_module("gridless.streaming.engine") is sys.modules["gridless.live.engine"]
    assert all(gl.compat.aliases.MOVED[name] != name for name in aliases.MOVED)


def test_enabling_does_not_load_torch():
    code = "import sys, gridless.compat as c; c.enable(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_folder_without_modules_does_not_hide_a_name(tmp_path, monkeypatch):
    (tmp_path / "gridless_alias" / "__pycache__").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    finder = aliases.install({"gridless_alias": "gridless.live"})
    try:
        assert importlib.import_module("gridless_alias.engine") is sys.modules["gridless.live.engine"]
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith("gridless_alias")]:
            del sys.modules[name]


def test_further_calls_add_names():
    code = """
        import gridless as gl
        gl.pyg.enable()
        assert gl.compat.enable("spconv") == ("spconv",)
        import spconv.pytorch
        assert gl.compat.enable("pointops") == ("pointops",)
        import spconv.pytorch.conv, pointops, torch_cluster
        gl.compat.disable()
        try:
            import spconv.core
        except ModuleNotFoundError:
            print("gone")
        import torch_cluster
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert result.stdout == "gone\n", result.stderr
