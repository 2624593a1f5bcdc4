"""A headless Chromium that tests drive with its own protocol over two pipes; the standard library is enough."""
import base64
import fcntl
import glob
import itertools
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

# tests/conftest.py knows this sentence, and has the fixture `browser`: with UNMASK_ORACLES=required such a test fails
NONE_HERE = "no Chromium here (Debian: apt-get install chromium)"
FLAGS = ("--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
         "--disable-background-networking --disable-extensions --remote-debugging-pipe")  # fmt: skip


def chromium():
    names = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"
    of_playwright = glob.glob(os.path.expanduser("~/.cache/ms-playwright/chromium-*/chrome-linux*/chrome"))
    return next(filter(None, [*map(shutil.which, names), *of_playwright]), None)


needs_browser = pytest.mark.skipif(not chromium(), reason=NONE_HERE)


class Browser:
    """One page at a time: `open` a file, `run` JavaScript in it, press keys, take pictures; `errors` is its console."""

    def __init__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        ends = *os.pipe(), *os.pipe()
        theirs_in, self.out, self.into, theirs_out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
        for end in ends:
            os.close(end)
        command = f"exec {shlex.quote(chromium())} {FLAGS} --user-data-dir={self.profile.name} about:blank"
        self.process = subprocess.Popen(
            ["bash", "-c", f"{command} 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-"],  # its 3 and 4
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self.numbers, self.session, self.rest, self.errors, self.requests = itertools.count(1), None, b"", [], []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)

    def send(self, method, **params):
        """Send a command and wait for its answer; what the page reports meanwhile is kept."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def receive(self, seconds=60):
        while b"\0" not in self.rest:
            assert select.select([self.into], [], [], seconds)[0], "Chromium does not answer"
            read = os.read(self.into, 1 << 20)
            assert read, "Chromium has ended"
            self.rest += read
        line, _, self.rest = self.rest.partition(b"\0")
        event = json.loads(line)
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
            self.errors.append(event["params"])
        return event

    def open(self, path, width=1280, height=900, dark=False):
        self.errors, self.requests = [], []
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=Path(path).resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def reload(self):
        """Load the page again. No code runs until it is there: what runs while a page goes away is an error."""
        self.send("Page.reload")
        while self.receive().get("method") != "Page.loadEventFired":
            pass

    def run(self, code):
        """Run JavaScript in the page -> its value; an exception there is one here."""
        done = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]["exception"].get("description")
        return done["result"].get("value")

    def wait(self, code, seconds=60):
        """Wait until JavaScript in the page is true."""
        end = time.monotonic() + seconds
        while not self.run(code):
            assert time.monotonic() < end, f"still not true: {code}"
            time.sleep(0.02)

    def press(self, *keys):
        """Press keys by their names, as a keyboard does."""
        codes = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            press = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key) or ord(key.upper())}
            text = {"text": "\r"} if key == "Enter" else {"text": key} if key not in codes else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", **press, **text)
            self.send("Input.dispatchKeyEvent", type="keyUp", **press)

    def looks(self, width, dark):
        """Assert that the page is no wider than the window, is dark or light, and has reported nothing."""
        assert self.run("document.documentElement.scrollWidth") <= width
        back, text = (int(re.search(r"\d+", self.run(f"getComputedStyle(document.body).{name}"))[0])
                      for name in ("backgroundColor", "color"))  # fmt: skip
        assert (back < 60) == dark and (text > 200) == dark and not self.errors

    def picture(self, path):
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        self.profile.cleanup()
