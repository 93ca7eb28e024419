"""Readers in a process of their own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import bad_readers
import h5py
import numpy as np
import pytest
import torch

import gridless as gl
from gridless.data import FormatError, isolation
from gridless.data.isolation import read_isolated

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.file"
    path.write_bytes(bytes(10))
    return path


def test_what_the_reader_returns_comes_back_and_what_it_prints_does_not(path: Path):
    assert read_isolated(bad_readers.chatter, path, 5) == (path, 5)


def test_what_the_reader_raises_comes_back(path: Path):
    with pytest.raises(KeyError, match="some words"):
        read_isolated(bad_readers.raise_it, path, words="some words")
    with pytest.raises(FileNotFoundError):
        read_isolated(bad_readers.raise_it, path.with_name("missing"), words="")


@pytest.mark.parametrize(("reader", "message"), [("die", "SIGABRT"), ("eat", "memory.*max_bytes")])
def test_the_death_of_the_process_is_a_format_error(path: Path, reader, message):
    with pytest.raises(FormatError, match=message) as caught:
        read_isolated(getattr(bad_readers, reader), path)
    assert caught.value.path == path


def test_a_hang_is_a_format_error(path: Path, monkeypatch):
    monkeypatch.setattr(isolation, "SECONDS", 3.0)
    with pytest.raises(FormatError, match="3 seconds"):
        read_isolated(bad_readers.hang, path)


def test_an_exception_while_waiting_leaves_no_process(path: Path):
    class Interrupt(Exception):
        pass

    def interrupt(*_):
        raise Interrupt

    def interrupt_when_it_hangs():
        while not path.with_suffix(".pid").exists() or not path.with_suffix(".pid").read_text():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thread = threading.Thread(target=interrupt_when_it_hangs, daemon=True)
        thread.start()
        with pytest.raises(Interrupt):
            read_isolated(bad_readers.hang, path)
    finally:
        signal.signal(signal.SIGUSR1, old)
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.with_suffix(".pid").read_text()), 0)


def test_events_are_read_in_isolation_as_they_are_without(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(isolation, "SECONDS", 250.0)
    time = np.arange(50)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, value in {"x": time % 7, "y": time % 5, "t": time[::-1], "p": time % 2}.items():
            file[f"events/{name}"] = value
    options = {"sensor": (34, 34), "repair": "sort"}
    alone = gl.read_events(tmp_path / "a.h5", isolated=True, **options)
    assert np.array_equal(alone.numpy(), gl.read_events(tmp_path / "a.h5", **options).numpy())
    assert alone.sensor == (34, 34)


def test_clouds_are_read_in_isolation_as_they_are_without(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(isolation, "SECONDS", 250.0)
    (tmp_path / "a.csv").write_text("x,y,z,label\n1,2,3,4\n5,6,7,8\n")
    alone = gl.read_cloud(tmp_path / "a.csv", isolated=True, dtype=torch.float64, rows="label")
    assert alone.coords.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert alone.coords.dtype == torch.float64
    assert alone.rows["label"].tolist() == [4, 8]
