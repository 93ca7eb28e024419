"""Strings from files reach no terminal, picture or page with control characters in them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.kernels.progress import say, shown
from gridless.pictures.page import Page

EVIL = "\x1b[31mred\x07\u202e\u2028end"
SAFE = r"\x1b[31mred\x07\u202e\u2028end"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain Größe 椅子 é", "plain Größe 椅子 é"),
        (EVIL, SAFE),
        ("a\tb\nc\\", r"a\tb\nc" + "\\"),
        ("\udcff", r"\udcff"),
    ],
)
def test_control_characters_are_escaped_and_letters_stay(text, wanted):
    assert shown(text) == wanted


def test_errors_and_warnings_are_one_line_without_control_characters(capsys):
    say("gridless", f"a\n  b {EVIL}")
    assert capsys.readouterr().err == f"gridless: a b {SAFE.replace(chr(92) + 'u2028', ' ')}\n"


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    gl.save(gl.models.PointResNet(2, width=8, levels=2, radius=0.4), tmp_path / "net", class_names=[EVIL, "b"])
    np.save(tmp_path / "cloud.npy", np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32))
    return tmp_path


def test_class_names_of_weights_do_not_steer_the_terminal(weights, capsys):
    command = ["predict", str(weights / "cloud.npy"), "--weights", str(weights / "net"), "--device", "cpu"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert SAFE in out
    assert out.strip().isprintable()
    assert main([*command, "--json"]) == 0
    line = capsys.readouterr().out
    assert line.strip().isprintable()
    assert EVIL in json.loads(line)["probabilities"], "programs get the name as it is"


@pytest.mark.slow
def test_names_of_folders_are_shown_escaped_before_training(tmp_path, capsys):
    for name in ("a\x1b[2J", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            np.save(tmp_path / "data" / name / f"{i}.npy", np.random.default_rng(i).normal(size=(40, 3)))
    settings = ["points=32", "model={model: PointResNet, width: 8, levels: 1, radius: 0.5}", "batch_size=2"]
    changes = [word for setting in settings for word in ("--set", setting)]
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--epochs", "1", "--device", "cpu"]
    assert main(["train", "own-clouds", *arguments, *changes]) == 0
    err = capsys.readouterr().err
    assert r"a\x1b[2J: 2 fit, 1 validation" in err
    assert "\x1b" not in err


def test_pages_have_no_control_characters():
    page = Page(EVIL)
    page.table([EVIL], [[EVIL]])
    page.text(EVIL)
    text = page.html()
    assert SAFE in text
    assert not {"\x1b", "\x07", "\u202e", "\u2028"} & set(text)
