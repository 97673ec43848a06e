"""A headless Chromium for tests, through chromedriver's own protocol (W3C WebDriver)."""

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

MISSING = next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), None)

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
)

_POLL = """
    const done = arguments[0];
    const look = () => {
      let there = false;
      try { there = (() => { @ })(); } catch (error) { there = false; }
      if (there) done(true); else setTimeout(look, 20);
    };
    look();
"""

_LOOPBACK = build_opener(ProxyHandler({}))


class Browser:
    """One session of a browser."""

    def __init__(self, url: str, capabilities: dict[str, Any]) -> None:
        self._url = url
        asked = {"capabilities": {"alwaysMatch": capabilities}}
        self._session = self._call("POST", "/session", asked)["sessionId"]

    def _call(self, method: str, path: str, told: object = None) -> Any:  # noqa: ANN401 - JSON
        body = json.dumps(told).encode() if told is not None else None
        request = Request(  # noqa: S310 - loopback
            self._url + path, body, {"Content-Type": "application/json"}, method=method
        )
        with _LOOPBACK.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def call(self, method: str, path: str, told: object = None) -> Any:  # noqa: ANN401 - JSON
        """One command of this session."""
        return self._call(method, f"/session/{self._session}{path}", told)

    def open(self, page: Path | str) -> None:
        """Go to a file, or to an address."""
        url = page.resolve().as_uri() if isinstance(page, Path) else page
        self.call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """What `script`, the body of a function, returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str) -> None:
        """Until `script` returns something true; an error after about ten seconds."""
        # The browser itself looks again and again, at its own pace.
        poll = _POLL.replace("@", script)
        for _ in range(3):
            try:
                assert self.call("POST", "/execute/async", {"script": poll, "args": []})
            except HTTPError as error:  # the page was replaced while it was looked at
                error.close()
            else:
                return
        raise AssertionError(f"never true: {script}")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]}
        )

    def click(self, x: int, y: int) -> None:
        """Click at a place of the window."""
        actions = [
            {"type": "pointerMove", "duration": 0, "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self.call(
            "POST",
            "/actions",
            {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]},
        )

    def hover(self, x: int, y: int) -> None:
        """Move the pointer."""
        actions = [{"type": "pointerMove", "duration": 0, "x": x, "y": y}]
        self.call(
            "POST",
            "/actions",
            {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]},
        )

    def dark(self, *, dark: bool) -> None:
        """Ask for a colour scheme, as the user's system would."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})

    def size(self, width: int, height: int) -> None:
        """Make the window's inside so large."""
        told = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", told)

    def devtools(self, command: str, told: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """A command of the browser's own protocol."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": told})

    def log(self) -> list[dict[str, Any]]:
        """What the page has put on its console, errors among it."""
        told = self.call("POST", "/se/log", {"type": "browser"})
        assert isinstance(told, list)
        return told

    def screenshot(self) -> bytes:
        """What there is to see, as PNG."""
        return base64.b64decode(self.call("GET", "/screenshot"))

    def quit(self) -> None:
        """End."""
        self.call("DELETE", "")


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"],  # noqa: S607 - whatever is installed
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert driver.stdout is not None
    try:
        port = next(
            found[1]
            for line in driver.stdout
            if (found := re.search(r"successfully on port (\d+)", line))
        )
        options = {"args": [*_OPTIONS, f"--user-data-dir={profile}"]}
        browser = Browser(
            f"http://127.0.0.1:{port}",
            {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}},
        )
        try:
            yield browser
        finally:
            browser.quit()
    finally:
        driver.terminate()
        driver.wait(timeout=10)
        driver.stdout.close()
