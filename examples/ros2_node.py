"""A ROS 2 node: events in, predictions out.

    python examples/ros2_node.py --ros-args -p weights:=n-cars-stream -p topic:=/event_camera/events

The node subscribes to `event_camera_msgs/EventPacket` and runs the network event by event. It publishes predictions as
`std_msgs/String` on `~/prediction`: {"time": microseconds, "class": name, "probability": number}.

If the camera has more pixels than the network, `pool` makes N x N pixels one, and `crop` ([x, y]) is the first pixel
that is used. The node needs ROS 2 (`rclpy`) and the package `event_camera_msgs`. `Predictor` needs neither.
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
    """Predicts from the packets of a camera, one message at a time."""

    def __init__(self, weights: str, crop: tuple[int, int] = (0, 0), pool: int = 1) -> None:
        model = gl.load(weights)
        self.names = model.about["class_names"]
        self.engine = gl.stream(model.eval())
        self.fit = Fit(self.engine.sensor, crop, pool, drop=True)
        self.decode = PacketDecoder("the camera")

    def __call__(self, message: Any) -> Iterator[dict[str, Any]]:
        """Yields the predictions that the events of a message cause."""
        packet = self.decode(message)
        columns = {"x": packet.pixel[:, 0], "y": packet.pixel[:, 1], "t": packet.time, "p": packet.polarity}
        # Some cameras send almost simultaneous events out of order.
        events = self.fit(gl.Events.of(columns, packet.sensor, repair="sort"))
        for prediction in self.engine.push(events):
            yield self._as_dict(prediction.time, prediction.logits)

    def last(self) -> dict[str, Any] | None:
        """Returns the prediction at the last event, or None before the first event."""
        return self._as_dict(self.engine.time, self.engine.predict()) if self.engine.events_seen else None

    def _as_dict(self, time: int, logits: Any) -> dict[str, Any]:
        probability, best = logits.softmax(0).max(0)
        return {"time": int(time), "class": self.names[int(best)], "probability": round(float(probability), 4)}


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
            values = {name: self.declare_parameter(name, value).value for name, value in defaults.items()}
            self.predict = Predictor(values["weights"], tuple(values["crop"]), values["pool"])
            self.publisher = self.create_publisher(String, "~/prediction", 10)
            self.create_subscription(EventPacket, values["topic"], self.take, qos_profile_sensor_data)
            self.create_timer(0.1, self.ask)  # for networks that predict only on request
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
