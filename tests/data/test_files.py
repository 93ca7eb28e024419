"""Files that are either whole or not there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gridless as gl
from gridless.data import files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def fail() -> None:
        with files.whole_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "x").write_bytes(b"before")
    with pytest.raises(NotADirectoryError, match=r"x is a file.*folder"):
        files.write_whole(tmp_path / "x" / "below" / "y.png", b"")


def test_threads_may_write_one_file_at_once(tmp_path):
    """All begin before any ends; each has a file of its own, and the last to finish is the one that stays."""
    path, begun = tmp_path / "x", threading.Barrier(4)

    def write(number: int) -> None:
        with files.whole_file(path) as file:
            begun.wait(60)
            file.write(bytes([number]) * 1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert list(tmp_path.iterdir()) == [path]
    assert len(path.read_bytes()) == 1000
    assert len(set(path.read_bytes())) == 1


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "x")
    assert files.write_whole(link, b"content") == link
    assert link.is_symlink()
    assert (tmp_path / "folder" / "x").read_bytes() == b"content"


def test_the_longest_names_can_be_written(tmp_path):
    for name in ("a" * 255, "\u2603" * 85):
        assert files.write_whole(tmp_path / name, b"content").read_bytes() == b"content"


@pytest.mark.slow
def test_only_what_nobody_can_be_writing_is_swept(tmp_path):
    here = files._machine()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = f"x{files._MARK}{here}-{ended.pid}-0", f"x{files._MARK}{here}-{os.getpid()}-0"
    elsewhere, forgotten = f"x{files._MARK}elsewher-{ended.pid}-0", f"x{files._MARK}elsewher-{ended.pid}-1"
    odd = f"x{files._MARK}odd"
    for name in (dead, alive, elsewhere, forgotten, odd, "x"):
        (tmp_path / name).write_bytes(b"content")
    os.utime(tmp_path / forgotten, (time.time() - 90_000,) * 2)
    files.sweep(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([alive, elsewhere, odd, "x"])


def test_on_windows_no_process_is_asked_whether_it_lives(tmp_path, monkeypatch):
    """The signal 0, which asks on other systems, is Ctrl-C there."""
    left = tmp_path / f"x{files._MARK}{files._machine()}-123456-0"
    left.write_bytes(b"content")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a process was interrupted"))
    files.sweep(tmp_path)
    assert left.exists()
    os.utime(left, (time.time() - 90_000,) * 2)
    files.sweep(tmp_path)
    assert not left.exists()


@pytest.mark.slow
def test_a_full_disk_leaves_files_as_they_were(tmp_path):
    """The disk is full for a process that may write no more than 1,000 bytes to a file."""
    script = """
        import resource, signal, sys, numpy as np, gridless as gl
        from gridless.pictures.page import Page
        t = np.arange(20_000)
        events = gl.Events.of(dict(t=t, x=t % 30, y=t % 20, p=t % 2), sensor=(34, 34))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        for path in sys.argv[1:]:
            try:
                Page("title").save(path) if path.endswith("html") else gl.write_events(path, events)
            except OSError as error:
                print(error)
    """
    paths = [tmp_path / f"file{suffix}" for suffix in (".npz", ".npy", ".csv", ".es", ".dat", ".bin", ".html")]
    for path in paths:
        path.write_bytes(b"before")
    environment = {**os.environ, "PYTHONPATH": str(Path(gl.__file__).parents[1])}
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, paths)]
    ended = subprocess.run(command, env=environment, timeout=120, capture_output=True, text=True, check=True)
    messages = [f"[Errno 27] File too large: '{path}'" for path in paths]
    messages[1] = f"[Errno 28] 20000 requested and 47 written: '{paths[1]}'"
    assert ended.stdout.splitlines() == messages
    assert all(path.read_bytes() == b"before" for path in paths)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
