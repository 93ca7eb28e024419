"""The rule by which files are held out for validation: whole sessions, as recorders name them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

SHARE = 0.2
# Suffixes of files; some have two parts.
_SUFFIX = re.compile(r"(\.pcd\.bin|\.copc\.la[sz]|\.[^./]*)$", re.IGNORECASE)
# As recorders name files: recording_2024-05-01_12-30-11, dvSave-2024_05_01_12_30_11, DVS128-2024-05-01T12-30-11+0200-0.
_STAMP = re.compile(
    r"((?:19|20)\d\d([-_.]?)[01]\d\2[0-3]\d)[-_T. ]*[0-2]\d([-_.:]?)[0-5]\d\3[0-5]\d(?:\.\d+)?(?:Z|[+-]\d{4}[^/]*)?$"
)


def held_out(labels: Sequence[int], names: Sequence[str]) -> tuple[list[int], str]:
    """Choose the examples to hold out; returns their numbers and the rule, in words.

    Neighbouring recordings of one session are so alike that a random split asks nothing new. So whole sessions are held
    out. A session is a folder below that of the class, and the file's name without the number at its end, whatever the
    class. A name that ends in the date and time of the recording counts without the time. If a class has only one
    session, its last fifth is held out, in the order of the numbers.
    """
    sessions = [_session(_SUFFIX.sub("", name)) for name in names]
    chosen, taken = _whole_sessions(labels, sessions)
    held = {labels[i] for i in chosen}
    rest: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(labels):
        if label not in held:
            rest[label].append(i)
    for members in rest.values():
        members.sort(key=lambda i: _natural(names[i]))
        chosen += members[len(members) - min(max(1, round(SHARE * len(members))), len(members) - 1) :]
    if not taken:
        return sorted(chosen), "the last fifth of each class, in the order of the file names"
    more = f"; the last fifth of {len(rest)} classes without several of them" if rest else ""
    return sorted(chosen), f"{taken} of {len(set(sessions))} sessions, by folder and file name{more}"


def _whole_sessions(labels: Sequence[int], sessions: Sequence[str]) -> tuple[list[int], int]:
    """The examples of the sessions that are held out, and how many sessions these are."""
    members: dict[str, list[int]] = defaultdict(list)
    sessions_of: dict[int, set[str]] = defaultdict(set)
    for i, (label, session) in enumerate(zip(labels, sessions, strict=True)):
        members[session].append(i)
        sessions_of[label].add(session)
    counts, left, held = Counter(labels), Counter(labels), Counter()
    chosen, taken = list[int](), 0
    # The order is fixed, and unrelated to the names.
    for session in sorted(members, key=lambda name: hashlib.sha256(name.encode()).digest()):
        sizes = Counter(labels[i] for i in members[session])
        is_wanted = any(held[k] < SHARE * counts[k] for k in sizes if len(sessions_of[k]) > 1)
        # Each class keeps an example to learn from, and no session is taken that would take far too much.
        if is_wanted and all(left[k] > n and held[k] + n <= max(2 * SHARE * counts[k], 1) for k, n in sizes.items()):
            chosen += members[session]
            taken += 1
            held.update(sizes)
            left.subtract(sizes)
    return chosen, taken


def _session(stem: str) -> str:
    """The part of a name that all files of a session have in common."""
    stamp = _STAMP.search(stem)
    return stem[: stamp.end(1)] if stamp else re.sub(r"[\W_]*\d+[\W_]*$", "", stem)


def _natural(name: str) -> list[Any]:
    """A sort key that orders numbers within names by their values: 9 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
