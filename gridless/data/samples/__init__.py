"""Samples that come with the package, to try things on: a cloud, a scan and recordings.

    gl.data.sample("chair")             a Cloud
    gl.data.sample_path("car")          the file, for commands and readers

All are generated (`tests/data/make_samples.py`), so no terms of a data set hold for them; they are under the licence of
the package. The terms of ModelNet40 and N-Cars (research only) and of SemanticKITTI (CC BY-NC-SA) do not allow us to
pass on their files under that licence.

The car is drawn, not recorded: `n-cars` names it (0.93). The other three networks of that data set say background.
"""

from __future__ import annotations

from pathlib import Path

from gridless.structures import Cloud, Events

# name -> file, and what it holds
SAMPLES = {
    "chair": ("chair.ply", "1,200 points on a chair, z up"),
    "street": ("street.ply", "a LiDAR scan of a street, z up, in metres, with intensity and labels"),
    "car": ("car.es", "100 ms of a car seen from behind, 120 x 100 pixels, for the networks n-cars..."),
    "digit": ("digit.es", "100 ms of a moving digit, 34 x 34 pixels"),
}


def sample_path(name: str) -> Path:
    """The file of a sample: chair, street (clouds), car or digit (recordings)."""
    if name not in SAMPLES:
        known = "; ".join(f"{key}: {about}" for key, (_, about) in SAMPLES.items())
        raise ValueError(f"sample: there is no sample {name!r}. Choose from {known}.")
    return Path(__file__).with_name(SAMPLES[name][0])


def sample(name: str) -> Cloud | Events:
    """A sample as `gl.read_cloud` or `gl.read_events` reads it."""
    from gridless.data.readers.clouds import read_cloud
    from gridless.data.readers.events import read_events

    path = sample_path(name)
    return read_cloud(path) if path.suffix == ".ply" else read_events(path)
