"""Pictures save in every format, whole or not at all, and pages stand alone."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.pictures import Picture, show
from gridless.pictures.page import Page, cloud, image

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def points() -> gl.Cloud:
    return gl.Cloud.of(torch.rand(200, 3, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def recording() -> gl.Events:
    return gl.data.MovingGlyphs(3)[2][0]


@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
def test_clouds_and_events_save_in_every_format(points, recording, tmp_path, suffix):
    sample = gl.rejection_sample(points, radius=0.3)
    near = gl.ball(points, points, 0.2)
    for name, picture in {"cloud": show(points, sample=sample, edges=near), "events": show(recording)}.items():
        path = picture.save(tmp_path / f"{name}.{suffix}")
        assert path.stat().st_size > 2000
    assert not list(tmp_path.glob("*.part"))


def test_flat_clouds_and_empty_recordings_can_be_drawn(tmp_path):
    assert show(np.random.default_rng(0).random((50, 2))).save(tmp_path / "flat.png").exists()
    nothing = gl.Events(
        torch.zeros(0, 2, dtype=torch.int32),
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(0, dtype=torch.bool),
        torch.tensor([0, 0]),
        (8, 8),
    )
    assert show(nothing).save(tmp_path / "nothing.html").exists()
    assert show(nothing).save(tmp_path / "nothing.png").exists()


def test_rows_give_the_colours(points, recording, tmp_path):
    x = points.coords
    cloud = gl.Cloud.of(points, rgb=(x * 255).byte(), label=(x[:, 0] > 0.5).long(), height=x[:, 2], wide=x[:, :2])
    assert np.array_equal(show(cloud).colours, (x * 255).byte().numpy())
    assert len(np.unique(show(cloud, colour="label").colours, axis=0)) == 2
    lowest, highest = show(cloud, colour="height").colours[[int(x[:, 2].argmin()), int(x[:, 2].argmax())]]
    assert lowest.tolist() == [49, 120, 198]
    assert highest.tolist() == [209, 56, 44]
    events = gl.Events.of(recording, weight=recording.time.float())
    for picture in (show(cloud), show(cloud, colour="height"), show(events, colour="weight")):
        assert picture.save(tmp_path / "a.png").stat().st_size > 2000
        assert picture.save(tmp_path / "a.html").stat().st_size > 2000
    with pytest.raises(ValueError, match="'wide' of shape"):
        show(cloud, colour="wide")
    with pytest.raises(KeyError, match="no rows 'class'"):
        show(cloud, colour="class")


def test_what_cannot_be_drawn_says_why(points, recording, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png"):
        show(points).save(tmp_path / "cloud.docx")
    with pytest.raises(ValueError, match="draws one example"):
        show(gl.Cloud.of([torch.rand(3, 3), torch.rand(4, 3)]))
    with pytest.raises(ValueError, match="drawn on clouds"):
        show(recording, sample=points)


def test_notebooks_get_a_png(points):
    assert isinstance(show(points), Picture)
    assert show(points)._repr_png_().startswith(b"\x89PNG")


def test_a_page_escapes_text_and_loads_nothing_from_outside(points):
    page = Page("a < b", "tom & jerry")
    page.heading("<script>")
    page.table(["<th>"], [["<td>"]])
    page.row(cloud(points.coords.numpy(), np.zeros((200, 3), np.uint8), caption="<b>"))
    text = page.html()
    assert "<h2>&lt;script&gt;</h2>" in text
    assert "&lt;td&gt;" in text
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_page_opens_in_a_browser_without_a_complaint(points, recording, tmp_path):
    page = Page("Opens", "in a browser")
    page.row(cloud(points.coords.numpy(), np.full((200, 3), 90, np.uint8)), image(show(recording).figure(), "events"))
    path = page.save(tmp_path / "page.html")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "<canvas" in done.stdout
    # The viewer sizes each canvas when it draws.
    assert 'width="' in done.stdout.split("<canvas")[1].split(">")[0]
    assert "CONSOLE" not in done.stderr


@pytest.mark.parametrize("kind", ["cloud", "events"])
def test_the_command_draws_files(points, recording, tmp_path, kind, capsys):
    import json

    from gridless.__main__ import main

    file = tmp_path / ("cloud.npy" if kind == "cloud" else "events.npz")
    if kind == "cloud":
        np.save(file, points.coords.numpy())
        words = ["--sample", "0.3", "--ball", "0.2"]
    else:
        gl.write_events(file, recording)
        words = []
    out = tmp_path / "picture.html"
    assert main(["show", str(file), "--out", str(out), "--json", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["picture"] == str(out)
    assert facts.get("points", facts.get("events")) == (200 if kind == "cloud" else len(recording))
    assert out.stat().st_size > 2000
    assert main(["show", str(tmp_path / "missing.ply")]) == 1
    assert "no file" in capsys.readouterr().err
