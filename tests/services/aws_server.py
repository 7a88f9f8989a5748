"""Servers that speak AWS's dialect, for tests: private, on loopback, and under the test's command.

`moto` has SQS, SNS, EventBridge, and an S3 with conditional puts. `fauxqs` has SQS and SNS, is quick on deep queues and
exact about receipt handles; its S3 puts without looking at conditions. Both keep everything in memory: `stop`, `kill`
and another `start` lose it all.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.services import fauxqs_package
from tests.services.halting import halt, resume

from penstock.storage.aws import Aws

Kind = Literal["moto", "fauxqs"]

REGION = "us-east-1"
ACCOUNTS: Mapping[Kind, str] = {"moto": "123456789012", "fauxqs": "000000000000"}
CLEAN: Mapping[Kind, str] = {"moto": "/moto-api/reset", "fauxqs": "/_clean"}
START_SECONDS = 60.0  # far more than a start takes
STOP_SECONDS = 10.0

NOBODY = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""An environment in which boto3 finds nobody's account."""


@dataclass(kw_only=True)
class AwsServer:
    """One server. ``folder`` holds its log; ``environment_added`` is added to the server's own environment."""

    kind: Kind
    folder: Path
    environment_added: dict[str, str] = field(default_factory=dict)

    port: int = field(default=0, init=False)  # 0: never started; chosen at the first start and kept
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _clients: dict[str, Any] = field(default_factory=dict, init=False)

    # --- where it is

    @property
    def url(self) -> str:
        assert self.port, "the server was never started"
        return f"http://127.0.0.1:{self.port}"

    @property
    def account(self) -> str:
        """Whose queues and topics these are; a part of their ARNs."""
        return ACCOUNTS[self.kind]

    @property
    def aws(self) -> Aws:
        return aws_at(self.url)

    @property
    def environment(self) -> dict[str, str]:
        """For child processes that are to find this server and nobody else."""
        return environment_for(self.url)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.kind}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- its life

    def start(self) -> "AwsServer":
        """Start it and wait until it serves. Empty, also after `stop` or `kill`; at the same port."""
        assert not self.running, "the server is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:  # each start has a log of its own
            self._process = subprocess.Popen(
                self._command(),
                env={**os.environ, **self.environment_added},
                stdin=subprocess.PIPE,  # it ends when this does: nothing is left of a test run that was killed
                stdout=log,
                stderr=log,
                # Else, when the shell above ends while it is frozen, the kernel sends it SIGHUP and SIGCONT.
                start_new_session=True,
            )
        self._wait_for_words(1, "listening on ")
        self.port = int(self._words("listening on ")[-1])
        return self

    def stop(self) -> None:
        """End it. Harms nothing if it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Its connections stay open, and nothing is answered until `thaw`."""
        halt(self.pid)

    def thaw(self) -> None:
        resume(self.pid)

    def leave(self) -> None:
        """Refuse connections and end those there are, until `come_back`; keep all that it answered for.

        The nearest that a server in memory comes to the restart of one that keeps its data. A request that it is
        working at may take effect, and its answer is lost.
        """
        before = len(self._words("away"))
        os.kill(self.pid, signal.SIGHUP)
        self._wait_for_words(before + 1, "away")

    def come_back(self) -> None:
        before = len(self._words("listening on "))
        os.kill(self.pid, signal.SIGUSR2)
        self._wait_for_words(before + 1, "listening on ")

    def close(self) -> None:
        self.stop()

    # --- asking it

    def client(self, service: str) -> Any:
        """The harness's own client of that service, without retries. Threads may share it."""
        if service not in self._clients:
            self._clients[service] = client_at(self.url, service)
        return self._clients[service]

    def clean(self) -> None:
        """Forget all data, and all queues, topics and buckets."""
        request = urllib.request.Request(self.url + CLEAN[self.kind], method="POST")
        with urllib.request.urlopen(request, timeout=10.0):
            pass

    # --- in detail

    def _command(self) -> list[str]:
        here = Path(__file__).parent
        if self.kind == "moto":
            return [sys.executable, str(here / "moto_server.py"), str(self.port)]
        return ["node", str(here / "fauxqs" / "server.mjs"), str(self.port), str(fauxqs_package.FOLDER)]

    def _words(self, beginning: str) -> list[str]:
        """What the server said after these words, a line each."""
        lines = self.log.read_text(encoding="utf-8").splitlines(keepends=True)
        whole = (line.strip() for line in lines if line.endswith("\n"))
        return [line.removeprefix(beginning) for line in whole if line.startswith(beginning)]

    def _wait_for_words(self, times: int, beginning: str) -> None:
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        while len(self._words(beginning)) < times:
            assert self.running, self._story(beginning)
            assert time.monotonic() < give_up, self._story(beginning)
            tick.wait(0.005)

    def _story(self, awaited: str) -> str:
        return f"{self.kind} does not say `{awaited}`; it says:\n{self.log.read_text(encoding='utf-8')}"

    def _end(self, number: signal.Signals) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a frozen process hears nothing else
        process.send_signal(number)
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)


def aws_at(url: str) -> Aws:
    return Aws(region=REGION, endpoint_url=url)


def environment_for(url: str) -> dict[str, str]:
    return {**NOBODY, "AWS_ENDPOINT_URL": url}


def client_at(url: str, service: str) -> Any:
    """A client of boto3 that asks once, and waits for an answer as long as a long poll takes."""
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30, max_pool_connections=32)
    return aws_at(url).client(service, config=config)
