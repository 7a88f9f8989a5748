"""A real Prometheus for tests: on loopback, with its data in a test's folder."""

import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.services.ports import free_port

SECONDS_MAX = 120.0  # far more than a start or an answer takes


class PrometheusServer:
    """A server that scrapes and evaluates once a second. ``targets``: addresses by job name."""

    def __init__(self, folder: Path, *, rules: Path, targets: Mapping[str, Sequence[str]]) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is missing: apt-get install --no-install-recommends prometheus")
        folder.mkdir()
        jobs = [{"job_name": job, "static_configs": [{"targets": list(these)}]} for job, these in targets.items()]
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.json").write_text(json.dumps(settings))  # YAML, too
        self._address = f"127.0.0.1:{free_port()}"
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.json'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._await_ready()

    @property
    def url(self) -> str:
        return f"http://{self._address}"

    def query(self, expression: str) -> Sequence[Mapping[str, Any]]:
        """Return the present value of an expression. Raises AssertionError with Prometheus's error."""
        answer = self._asked("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer['error']}"
        found: Sequence[Mapping[str, Any]] = answer["data"]["result"]
        return found

    def alerts(self) -> Sequence[Mapping[str, Any]]:
        """Return the pending and firing alerts: labels, annotations, state."""
        found: Sequence[Mapping[str, Any]] = self._asked("alerts")["data"]["alerts"]
        return found

    def close(self) -> None:
        self._process.kill()  # its data is no longer needed
        self._process.wait(SECONDS_MAX)

    def _asked(self, path: str, **arguments: str) -> Mapping[str, Any]:
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as refusal:  # errors have the same form
            return dict(json.load(refusal))

    def _await_ready(self) -> None:
        give_up, tick = time.monotonic() + SECONDS_MAX, threading.Event()
        while not self._ready():
            assert self._process.poll() is None, self._log.read_text(encoding="utf-8")
            assert time.monotonic() < give_up, self._log.read_text(encoding="utf-8")
            tick.wait(0.05)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=SECONDS_MAX):
                return True
        except OSError:
            return False
