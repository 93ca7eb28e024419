"""`sensor_msgs/PointCloud2` in recordings of ROS: one message, all its fields as rows."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from gridless.data.readers.bags import Bag
from gridless.data.readers.clouds.base import Points, Source, named
from gridless.data.readers.clouds.pcd import colours

TYPES = ("sensor_msgs/msg/PointCloud2",)
# By the number that PointField has for it.
KINDS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}


def read(source: Source) -> Points:
    with Bag.open(source.path) as bag:
        topic = bag.topic(source.topic, TYPES, "clouds")
        count, number = bag.topics()[topic][1], source.message
        place = number + count if number < 0 else number
        message_at = next(islice(bag.messages(topic), place, None), None) if place >= 0 else None
        if message_at is None:
            raise source.error(f"the topic {topic!r} has {count} messages, but no message {number}")
        return points_of(source, bag.decoded(*message_at))


def points_of(source: Source, message: Any) -> Points:
    """The points of a message. Those that are not finite are kept, as in all readers."""
    step, width, height = int(message.point_step), int(message.width), int(message.height)
    order = ">" if message.is_bigendian else "<"
    data, row_step = np.ascontiguousarray(message.data, np.uint8), int(message.row_step)
    # Some drivers leave the length of a row at zero.
    row_step = row_step if row_step >= width * step else width * step
    # Behind the last row nothing needs to follow.
    if step < 1 or ((height - 1) * row_step + width * step > len(data) and width * height):
        raise source.error(f"{height} rows of {width} points of {step} bytes do not fit in {len(data)} bytes")
    columns = []
    for field in message.fields:
        name, count = str(field.name), max(int(field.count), 1)
        if int(field.datatype) not in KINDS:
            raise source.error(f"the field {name[:40]!r} has the unknown type {field.datatype}")
        kind = np.dtype(f"{order}{KINDS[int(field.datatype)]}")
        if field.offset + count * kind.itemsize > step:
            raise source.error(f"the field {name[:40]!r} ends after the {step} bytes of a point")
        shape, strides = (height, width, count), (row_step, step, kind.itemsize)
        whole = width * height and np.ndarray(shape, kind, data, int(field.offset), strides)
        values = np.array(whole).reshape(-1, count) if width * height else np.empty((0, count), kind)
        columns += colours(name, values)
    return named(source, columns)
