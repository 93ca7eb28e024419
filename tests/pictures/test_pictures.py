"""Pictures save in every format, whole or not at all, and pages stand alone."""

import shutil
import subprocess
import warnings

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser

import gridless as gl
from gridless.pictures import Picture, show
from gridless.pictures.page import Page, cloud, image


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
    with pytest.raises(ValueError, match=r"'wide' .*shape"):
        show(cloud, colour="wide")
    with pytest.raises(KeyError, match="'class'"):
        show(cloud, colour="class")


def test_what_cannot_be_drawn_says_why(points, recording, tmp_path):
    with pytest.raises(ValueError, match=r"cloud\.docx.*\.png"):
        show(points).save(tmp_path / "cloud.docx")
    with pytest.raises(ValueError, match=r"show.* 2 .*examples"):
        show(gl.Cloud.of([torch.rand(3, 3), torch.rand(4, 3)]))
    with pytest.raises(ValueError, match=r"neighbourhoods.*events"):
        show(recording, sample=points)


def test_notebooks_get_a_view_that_can_be_turned(points):
    picture = show(points)
    assert isinstance(picture, Picture)
    assert picture._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "200 points" in repr(picture)


def test_large_clouds_are_drawn_by_a_random_part_and_say_so(tmp_path, monkeypatch):
    from gridless.pictures import drawing

    monkeypatch.setattr(drawing, "MOST", 500)
    # By stride, every second point of a row of two kinds is of one kind.
    x = torch.arange(2000) % 2
    picture = show(torch.rand(2000, 3), colour=x)
    keep, title = picture._kept(picture.points()[0])
    assert len(keep) == len(set(keep)) == 500
    assert 150 < int(x[keep].sum()) < 350
    assert "2,000 points: 500 of them, taken at random, are shown" in title
    assert title in picture.html()
    assert "class=fit" in picture.html()


def test_more_points_are_drawn_where_asked():
    picture = show(torch.rand(90_000, 3), max_points=60_000)
    keep, title = picture._kept(picture.points()[0])
    assert len(keep) == 60_000
    assert "60,000 of them" in title
    assert "shown" not in show(torch.rand(60_000, 3), max_points=60_000).html().partition("</title>")[0]
    with pytest.raises(ValueError, match=r"max_points .* 0"):
        show(torch.rand(3, 3), max_points=0)


def test_a_legend_names_the_classes(points, recording):
    label = torch.arange(200) % 3
    picture = show(points, colour=label, class_names=["road", "<car>", "tree", "never"])
    assert [name for name, _ in picture.legend.entries] == ["road", "<car>", "tree"]
    for (_, colour), k in zip(picture.legend.entries, range(3), strict=True):
        assert tuple(picture.colours[k]) == colour
    page = picture.html()
    assert "&lt;car&gt;</span>" in page
    assert "never" not in page
    assert [text.get_text() for text in picture.figure().legends[0].texts] == ["road", "<car>", "tree"]
    named = show(gl.Cloud.of(points, label=label), colour="label", class_names={1: "car"})
    assert [name for name, _ in named.legend.entries] == ["label 0", "car", "label 2"]
    assert show(points).full_legend() is None
    assert [name for name, _ in show(recording).full_legend().entries] == ["ON, brighter", "OFF, darker"]
    sample = gl.rejection_sample(points, radius=0.3)
    assert [n for n, _ in show(points, sample=sample).full_legend().entries] == ["sample", "other points"]
    heights = show(points, colour=points.coords[:, 2])
    assert heights.legend.scale
    assert "linear-gradient" in heights.html()


def test_many_classes_have_colours_of_their_own_and_a_short_legend():
    picture = show(torch.rand(400, 3), colour=torch.arange(400) % 40)
    assert len(np.unique(picture.colours, axis=0)) == 40
    assert picture.legend.entries[-1][0] == "and 16 more"


def test_a_view_fits_most_points_and_not_the_outliers(tmp_path):
    from gridless.pictures.page import scaled

    x = torch.rand(1000, 3)
    x[0] = 500.0
    picture = show(x)
    drawn = scaled(picture.points()[0])
    assert 0.6 < np.abs(drawn[1:]).max() <= 1.01
    keep, title = picture._kept(picture.points()[0], fit=True)
    assert "1 outliers are outside the picture" in title
    assert 0 not in keep
    assert picture.save(tmp_path / "a.png").stat().st_size > 2000
    # A cloud without outliers is shown whole, flat ones as well.
    for whole in (torch.rand(1000, 3), torch.rand(1000, 2), torch.rand(1000, 3) * torch.tensor([1.0, 1.0, 0.0])):
        assert np.abs(scaled(show(whole).points()[0])).max() <= 1 + 1e-9


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_draws_many_points_by_webgl(tmp_path):
    path = show(torch.rand(100_000, 3), max_points=100_000).save(tmp_path / "many.html")
    software = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
    with Browser(path.as_uri(), tmp_path / "browser", *software) as page:
        page.wait("document.readyState == 'complete' && document.querySelector('canvas').dataset.by")
        kind = page.value("document.querySelector('canvas').dataset.by")
        assert page.value("document.querySelector('canvas').width") > 100
        inked = """(() => {
          const from = document.querySelector("canvas"), to = document.createElement("canvas");
          [to.width, to.height] = [from.width, from.height];
          const pen = to.getContext("2d");
          pen.drawImage(from, 0, 0);
          return pen.getImageData(0, 0, to.width, to.height).data.filter((v, i) => i % 4 == 3 && v).length;
        })()"""
        assert page.wait(inked) > 1000
        assert not page.complaints
    assert kind == "webgl"


def test_nothing_and_points_that_are_not_finite_are_mentioned(tmp_path):
    x = torch.rand(20, 3)
    x[3, 1], x[7, 0] = torch.nan, torch.inf
    assert show(x).words == "20 points, 2 of them not finite and left out"
    assert show(x).save(tmp_path / "nan.png").stat().st_size > 2000
    assert show(x).save(tmp_path / "nan.html").stat().st_size > 2000
    empty = show(torch.zeros(0, 3))
    assert empty.words == "no points"
    assert empty.save(tmp_path / "none.png").exists()
    assert "no points" in empty.html()


def test_up_is_any_axis(points):
    for up, axis in (("x", 0), ("y", 1), ("z", 2)):
        drawn = show(points, up=up).points()[0]
        assert np.array_equal(drawn[:, 2], points.coords[:, axis])
        # Turned, and not mirrored.
        turned = show(torch.eye(3), up=up).points()[0]
        assert np.linalg.det(turned) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"up .*'w'"):
        show(points, up="w")


def test_predictions_give_the_colours(points):
    logits = torch.rand(200, 7)
    assert len(np.unique(show(points, colour=logits.argmax(1)).colours, axis=0)) == 7
    with pytest.raises(ValueError, match=r"logits.argmax\(1\)"):
        show(points, colour=logits)
    with pytest.raises(ValueError, match=r"colour.* 200.* 3"):
        show(points, colour=torch.zeros(3))


def test_meshes_are_drawn_as_meshes(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    box = trimesh.creation.box()
    for name in ("box.off", "box.ply"):
        box.export(tmp_path / name)
        assert show(tmp_path / name).words == "12 triangles"
    picture = show(box)
    assert "<canvas data-triangles=" in picture.html()
    assert picture.save(tmp_path / "box.png").stat().st_size > 2000
    trimesh.PointCloud(np.random.default_rng(0).random((9, 3))).export(tmp_path / "points.ply")
    assert show(tmp_path / "points.ply").words == "9 points"
    with pytest.raises(ValueError, match=r"gl.data.sample_mesh"):
        show(box, colour="label")


def test_events_are_seen_as_frames_and_surfaces(recording, tmp_path):
    frame, surface = (show(recording, view=view) for view in ("frame", "surface"))
    assert frame.image().shape == surface.image().shape == (34, 34, 3)
    counts = gl.frames(recording)[0]
    assert (frame.image() == 255).all(2).sum() == int((counts.sum(0) == 0).sum())
    for picture in (frame, surface):
        assert picture.save(tmp_path / "a.png").stat().st_size > 2000
        assert "<img" in picture.html()
    with pytest.raises(ValueError, match="view 'frame'"):
        show(torch.rand(3, 3), view="frame")


def test_event_pictures_run_from_the_start_with_y_downwards(recording):
    late = gl.Events(recording.pixel, recording.time + 10**12, recording.polarity, recording.splits, recording.sensor)
    axes = show(late).figure().axes[0]
    time, _, y = axes.collections[0]._offsets3d
    assert float(np.min(time)) == 0
    assert float(np.max(time)) < 101
    assert np.min(y) >= 0
    low, high = axes.get_zlim()
    assert low > high


def test_videos_show_every_event_once(recording, tmp_path):
    from PIL import Image

    from gridless.pictures.video import event_images

    images = list(event_images(recording, fps=50, speed=0.5))
    span = int(recording.time[-1] - recording.time[0])
    assert len(images) == span // 10_000 + 1
    assert images[0].shape == (306, 306, 3)
    path = show(recording).video(tmp_path / "a.gif", fps=20, speed=0.2)
    with Image.open(path) as film:
        assert film.n_frames > 5
        assert film.info["duration"] == 50
    assert show(recording).save(tmp_path / "b.gif").exists()
    with pytest.raises(ValueError, match=r"a\.avi.*\.gif"):
        show(recording).video(tmp_path / "a.avi")
    with pytest.raises(ValueError, match=r"video .*clouds"):
        show(torch.rand(3, 3)).video(tmp_path / "a.gif")
    with pytest.raises(ValueError, match="no events"):
        show(recording[:0]).video(tmp_path / "a.gif")


def test_mp4_needs_ffmpeg(recording, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match=r"ffmpeg.*\.gif"):
        show(recording).video(tmp_path / "a.mp4")
    # A stand-in that takes the pixels: what is there is written whole.
    tool = tmp_path / "ffmpeg"
    tool.write_text('#!/bin/sh\nfor last; do :; done\n/bin/cat > "$last"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert show(recording).video(tmp_path / "a.mp4", speed=0.2).stat().st_size % (306 * 306 * 3) == 0
    tool.write_text("#!/bin/sh\necho no such codec >&2\nexit 3\n")
    with pytest.raises(RuntimeError, match=r"b\.mp4.*no such codec"):
        show(recording).video(tmp_path / "b.mp4")
    assert not (tmp_path / "b.mp4").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not there")
def test_an_mp4_holds_the_images(recording, tmp_path):
    from gridless.pictures.video import event_images

    path = show(recording).video(tmp_path / "a.mp4", fps=50, speed=0.5)
    read = ["ffmpeg", "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    film = np.frombuffer(subprocess.run(read, capture_output=True, check=True).stdout, np.uint8)
    images = np.stack(list(event_images(recording, fps=50, speed=0.5)))
    film = film.reshape(images.shape)
    # Colours are kept at half the resolution.
    assert np.abs(film.astype(int) - images).mean() < 8
    assert np.abs(np.roll(film, 1, 0).astype(int) - images).mean() > 12


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


@pytest.mark.slow
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

    from gridless.cli.main import main

    file = tmp_path / ("cloud.npy" if kind == "cloud" else "events.npz")
    if kind == "cloud":
        np.save(file, points.coords.numpy())
        options = ["--sample", "0.3", "--ball", "0.2", "--up", "y"]
    else:
        gl.write_events(file, recording)
        options = ["--view", "frame", "--video", str(tmp_path / "film.gif"), "--speed", "0.2"]
    out = tmp_path / "picture.html"
    assert main(["show", str(file), "--out", str(out), "--json", *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["picture"] == str(out)
    assert facts.get("points", facts.get("events")) == (200 if kind == "cloud" else len(recording))
    assert out.stat().st_size > 2000
    assert (tmp_path / "film.gif").is_file() == (kind == "events")
    assert main(["show", str(tmp_path / "missing.ply")]) == 1
    assert "no file" in capsys.readouterr().err
    # Without --out a picture of its own is replaced, and no other.
    drawn = file.with_suffix(".png")
    for _ in range(2):
        assert main(["show", str(file)]) == 0
    drawn.write_bytes(b"a photograph")
    assert main(["show", str(file)]) == 1
    assert "--out" in capsys.readouterr().err
    assert drawn.read_bytes() == b"a photograph"
    assert main(["show", str(file), "--out", str(drawn)]) == 0
    assert drawn.stat().st_size > 2000
    capsys.readouterr()
    assert main(["show", str(file), "--colour", "mood"]) == 1
    assert capsys.readouterr().err.startswith("gridless show: no rows 'mood', only ")


@pytest.mark.parametrize("values", [[60000.0, -60000.0], [0.5, 0.5]])
def test_numbers_of_sixteen_bits_have_colours(values):
    from gridless.pictures.colours import BLUE, RED, row_colours

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = row_colours("value", torch.tensor(values, dtype=torch.float16)).tolist()
    assert first == (BLUE if values[0] == values[1] else RED).tolist()
    assert second == BLUE.tolist()
