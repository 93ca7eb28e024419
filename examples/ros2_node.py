"""A ROS 2 node: events in, predictions out.

    python examples/ros2_node.py --ros-args -p weights:=n-cars-stream -p topic:=/event_camera/events

It subscribes to `event_camera_msgs/EventPacket`, runs the network event by event, and publishes what it finds as
`std_msgs/String` on `~/prediction`: {"time": microseconds, "class": name, "probability": share}. The camera may have
more pixels than the network: `pool` makes N x N of them one, and `crop` ([x, y]) is the first; others are left out.
The node needs ROS 2 (`rclpy`) and the package `event_camera_msgs`. What it computes, `Predictor`, needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gridless as gl
from gridless.data.readers.events.ros import PacketDecoder
from gridless.live.sources import Fit


class Predictor:
    """Predictions of a network from packets of a camera."""

    def __init__(self, weights: str, crop: tuple[int, int] = (0, 0), pool: int = 1) -> None:
        model = gl.load(weights)
        self.names = model.about["class_names"]
        self.engine = gl.stream(model.eval())
        self.fit = Fit(self.engine.sensor, crop, pool, drop=True)
        self.decode = PacketDecoder("the camera")

    def __call__(self, message: Any) -> Iterator[dict[str, Any]]:
        """What the network says while it takes the events of a message."""
        packet = self.decode(message)
        columns = {"x": packet.pixel[:, 0], "y": packet.pixel[:, 1], "t": packet.time, "p": packet.polarity}
        # Some cameras send events of one moment out of order.
        events = self.fit(gl.Events.of(columns, packet.sensor, repair="sort"))
        for prediction in self.engine.push(events):
            yield self._said(prediction.time, prediction.logits)

    def last(self) -> dict[str, Any] | None:
        """What the network says now; None before the first event."""
        return self._said(self.engine.time, self.engine.predict()) if self.engine.events_seen else None

    def _said(self, time: int, logits: Any) -> dict[str, Any]:
        share, best = logits.softmax(0).max(0)
        return {"time": int(time), "class": self.names[int(best)], "probability": round(float(share), 4)}


def main() -> None:
    try:
        import rclpy
        from event_camera_msgs.msg import EventPacket
        from rclpy.node import Node
        from rclpy.qos import qos_profile_sensor_data
        from std_msgs.msg import String
    except ImportError as error:
        raise SystemExit(f"ros2_node: {error}: source your ROS 2 first, with event_camera_msgs installed") from None

    class Predictions(Node):
        def __init__(self) -> None:
            super().__init__("gridless")
            defaults = {"weights": "n-cars-stream", "topic": "/event_camera/events", "crop": [0, 0], "pool": 1}
            said = {name: self.declare_parameter(name, value).value for name, value in defaults.items()}
            self.predict = Predictor(said["weights"], tuple(said["crop"]), said["pool"])
            self.publisher = self.create_publisher(String, "~/prediction", 10)
            self.create_subscription(EventPacket, said["topic"], self.take, qos_profile_sensor_data)
            # Networks that are asked, rather than speak for themselves, are asked ten times a second.
            self.create_timer(0.1, self.ask)
            self.lost = 0

        def take(self, message: Any) -> None:
            for prediction in self.predict(message):
                self.publish(prediction)
            if self.predict.decode.lost > self.lost:
                self.get_logger().warning(f"{self.predict.decode.lost - self.lost} packets were lost")
                self.lost = self.predict.decode.lost

        def ask(self) -> None:
            prediction = self.predict.last()
            if prediction is not None:
                self.publish(prediction)

        def publish(self, prediction: dict[str, Any]) -> None:
            self.publisher.publish(String(data=json.dumps(prediction)))

    rclpy.init()
    node = Predictions()
    try:
        with suppress(KeyboardInterrupt):
            rclpy.spin(node)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
