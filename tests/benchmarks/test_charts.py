"""Charts of ratios: each comparison of a table is in its chart, on the right side of 1."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import charts  # noqa: E402
import page  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_and_dots_are_on_their_side_of_one():
    root = ElementTree.fromstring(charts.ratios([("a < b", [4.0]), ("c", [0.5]), ("d", [0.5, 3.0, 2.0])], "title"))
    axis = next(path for path in root.iter(f"{SVG}path") if path.get("stroke") == charts.INK)
    one = float(re.match(r"M([\d.]+)", axis.get("d", ""))[1])  # type: ignore[index]
    bars = [r for r in root.iter(f"{SVG}rect") if r.get("rx") == "3"]
    assert [float(bar.get("x")) >= one - 0.1 for bar in bars] == [True, False]  # type: ignore[arg-type]
    dots = [float(dot.get("cx")) > one for dot in root.iter(f"{SVG}circle")]  # type: ignore[arg-type]
    assert dots == [False, True, True]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "4 x", "median 2 x"} <= set(texts)


def test_every_comparison_is_in_the_overview_and_the_files_are_as_new_as_the_results():
    tables, svg = page.tables()
    count = sum(len(page.compared(columns, rows)) for _, (_, _, columns, rows) in tables)
    overview = ElementTree.fromstring(svg["overview.svg"])
    bars = [bar for bar in overview.iter(f"{SVG}rect") if bar.get("rx") == "3"]
    assert len([*overview.iter(f"{SVG}circle")]) + len(bars) == count
    for name, text in svg.items():
        assert (ROOT / "docs" / page.IMAGES / name).read_text() == text, "run python benchmarks/page.py"


def test_the_page_shows_charts_before_tables():
    text = page.benchmarks()
    assert text.index("overview.svg") < text.index("voxels.svg") < text.index("## Tables") < text.index("| ---")
    assert "### Voxels" in text


def test_many_rows_have_a_lane_for_each_kind():
    rows = [(f"{k} cm, {kind}", 1.0 + k) for k in range(9) for kind in ("forward", "with gradients, peak memory")]
    assert [(name, len(each)) for name, each in page.lanes(rows)] == [
        ("forward", 9),
        ("with gradients, peak memory", 9),
    ]
    assert len(page.lanes(rows[:5])) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), ""])
def test_rows_without_a_ratio_have_no_mark(value):
    assert page.compared(page.COLUMNS, [["a", "ms", 1.0, "", value]]) == []
