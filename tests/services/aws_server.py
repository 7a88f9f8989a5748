"""Servers with AWS's protocols for tests: private, on loopback, started and stopped by tests.

`moto` has SQS, SNS, EventBridge, and an S3 with conditional puts. `fauxqs` has SQS and SNS, is fast on deep queues and
exact about receipt handles; its S3 ignores conditions of puts. Both keep everything in memory: a stop or kill loses it.
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

NO_ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""An environment in which boto3 finds no real account."""


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
        """Return the account id, which is a part of ARNs."""
        return ACCOUNTS[self.kind]

    @property
    def aws(self) -> Aws:
        return aws_at(self.url)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for child processes that use this server."""
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

    # --- running it

    def start(self) -> "AwsServer":
        """Start it and wait until it serves. It is always empty, and keeps its port."""
        assert not self.running, "the server is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:  # each start begins a new log
            self._process = subprocess.Popen(
                self._command(),
                env={**os.environ, **self.environment_added},
                stdin=subprocess.PIPE,  # it ends with this process, even if that is killed
                stdout=log,
                stderr=log,
                # Otherwise the kernel sends a frozen server SIGHUP and SIGCONT when the shell above ends.
                start_new_session=True,
            )
        self._wait_for_words(1, "listening on ")
        self.port = int(self._words("listening on ")[-1])
        return self

    def stop(self) -> None:
        """Stop it, if it is running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Keep connections open but answer nothing until `thaw`."""
        halt(self.pid)

    def thaw(self) -> None:
        resume(self.pid)

    def leave(self) -> None:
        """Refuse connections and end existing ones until `come_back`. The server keeps its data.

        This simulates the restart of a server with durable data. A request in progress may take effect, but its answer
        is lost.
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
        """Return the tests' own client of a service, without retries. Threads may share it."""
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
        """Return the rest of each log line that begins with these words."""
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
        return f"{self.kind} did not log `{awaited}`; its log:\n{self.log.read_text(encoding='utf-8')}"

    def _end(self, number: signal.Signals) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a frozen process handles no other signal
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
    return {**NO_ACCOUNT, "AWS_ENDPOINT_URL": url}


def client_at(url: str, service: str) -> Any:
    """Return a boto3 client without retries, with a timeout that is longer than a long poll."""
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30, max_pool_connections=32)
    return aws_at(url).client(service, config=config)
