"""Headless Chromium over a pair of pipes: no driver and no package is needed beside the browser."""

import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
HOW_TO = "headless Chromium is not installed: apt-get install -y --no-install-recommends chromium"
SECONDS = 30


class Browser:
    """A browser with one page; ``events`` is everything it reported."""

    def __init__(self) -> None:
        assert CHROMIUM is not None, HOW_TO
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # it writes on while it ends
        read_theirs, self._write = os.pipe()
        self._read, write_theirs = os.pipe()
        flags = ["--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        words = [CHROMIUM, *flags, f"--user-data-dir={self._profile.name}", "--remote-debugging-pipe", "about:blank"]
        # The browser reads commands from descriptor 3 and writes answers to 4.
        script = f'exec "$@" 3<&{read_theirs} 4>&{write_theirs}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", *words],
            pass_fds=(read_theirs, write_theirs),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_theirs)
        os.close(write_theirs)
        self._count, self._rest, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; what else arrives meanwhile goes into ``events``."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, path: Path) -> None:
        """Load a file and wait until it has loaded."""
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.evaluate("new Promise(done => setTimeout(done, 200))")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression on the page."""
        found = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def screen(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the screen, and light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def console_errors(self) -> list[str]:
        """Everything the page reported as a warning or an error, refused requests and exceptions included."""
        found = []
        for event in self.events:
            content = event.get("params", {})
            name = event.get("method")
            if name == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
                found.append(content["entry"]["text"])
            elif name == "Runtime.exceptionThrown":
                found.append(str(content["exceptionDetails"]))
            elif name == "Runtime.consoleAPICalled":
                found.append(str(content["args"]))
        return found

    def requests(self) -> list[str]:
        """Every address the page asked for."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError(f"the browser said nothing for {SECONDS} seconds, or has ended")
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)
