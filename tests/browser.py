"""A page in headless Chromium, spoken to through its debugging pipe: what it holds, and what it complains of."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """`with Browser(url, folder) as page`: `page.value("document.title")`, `page.wait("done")`, `page.complaints`."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        (read, self._write), (self._read, write) = os.pipe(), os.pipe()
        command = [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
        ]
        command += [f"--user-data-dir={folder}", *options, "about:blank"]
        far = [fcntl.fcntl(end, fcntl.F_DUPFD, 64) for end in (read, write)]

        def wire() -> None:
            # Chromium reads commands from descriptor 3 and answers on 4.
            os.dup2(far[0], 3)
            os.dup2(far[1], 4)

        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, preexec_fn=wire, pass_fds=(3, 4), stdout=null, stderr=null)
        for end in (read, write, *far):
            os.close(end)
        self._rest, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._ask("Runtime.enable")
        self._ask("Log.enable")
        self._ask("Page.navigate", url=url)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def value(self, expression: str) -> Any:
        """The value of an expression of JavaScript, or of its promise."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 60.0) -> Any:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not (value := self.value(expression)):
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} was not true after {seconds} s; complaints: {self.complaints}")
            time.sleep(0.1)
        return value

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        """A window of so many pixels; a phone has fingers, and a screen twice as fine."""
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, mobile=phone,
            deviceScaleFactor=2 if phone else 1,
        )  # fmt: skip
        self._ask("Emulation.setTouchEmulationEnabled", enabled=phone)

    def dark(self, wanted: bool = True) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[feature])

    def choose(self, selector: str, *files: Path) -> None:
        """Files for an <input type=file>, as if they were chosen by hand."""
        root = self._ask("DOM.getDocument")["root"]["nodeId"]
        node = self._ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._ask("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def drop(self, *files: Path) -> None:
        """Files that are dragged onto the middle of the page."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._ask("Input.dispatchDragEvent", type=kind, x=200, y=200, data=data)

    def picture(self, path: Path, whole: bool = True) -> Path:
        """A screenshot of the page as PNG: all of it, or what the window shows."""
        answer = self._ask(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(self._all() if whole else {})
        )
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def _all(self) -> dict[str, Any]:
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "scale": 1}}

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._read, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(params["args"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
