"""A real PostgreSQL server for tests: private, in its own folder, started and stopped by tests.

It listens on a unix socket and, on request, on a loopback TCP port chosen by the system. PostgreSQL refuses to run as
root: if root runs the tests, its programs run as the user `postgres` or `nobody`.
"""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from tests.services.halting import halt, resume
from tests.services.ports import free_port

DEBIANS_PROGRAMS = Path("/usr/lib/postgresql")  # Debian keeps them out of PATH, in one folder per version
OWNER = "penstock"  # may do everything
START_SECONDS = 120.0  # far more than a start takes
STOP_SECONDS = 10.0
USERS = ("postgres", "nobody")  # for tests run by root: the first user that exists


def postgresql_programs() -> Path | None:
    """Return the folder with initdb and postgres of the newest version, or None if they are not installed."""
    debians = sorted(DEBIANS_PROGRAMS.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    in_path = shutil.which("initdb")
    places = [*debians, *([Path(in_path).resolve().parent] if in_path else [])]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def make_template() -> Path:
    """Create an empty cluster for servers to copy, which takes a second. The caller removes the folder."""
    folder = _private_folder()
    _run("initdb", "--pgdata", folder / "data", "--username", OWNER, "--auth", "trust", *_LOCALE, "--no-sync")
    return folder


_LOCALE = ("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-instructions")


@dataclass(kw_only=True)
class PostgresqlServer:
    """One server. Its data survives `stop`, `kill` and another `start`, until `close`.

    ``configuration`` has settings, such as ``{"max_connections": "10"}``; ``access`` replaces pg_hba.conf, which trusts
    all users. ``environment`` is added to the server's. ``template`` is a folder of `make_template`.
    """

    tcp: bool = False
    configuration: Mapping[str, str] = field(default_factory=dict)
    access: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    template: Path | None = None

    port: int = field(default=0, init=False)  # 0: none; chosen at the first start and kept
    _folder: Path | None = field(default=None, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _frozen: Sequence[int] = field(default=(), init=False)
    _numbers: "count[int]" = field(default_factory=lambda: count(1), init=False)

    # --- where it is

    @property
    def folder(self) -> Path:
        """Return the folder of data, socket and log: a short path that the server's user can access."""
        if self._folder is None:
            self._folder = _private_folder()
        return self._folder

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def url(self, database: str = "postgres", *, user: str = OWNER) -> str:
        """Return the URL of a database, over the unix socket."""
        port = f"&port={self.port}" if self.port else ""  # the socket's name has it
        return f"postgresql://{user}@/{database}?host={self.folder}{port}"

    def tcp_url(self, database: str = "postgres", *, user: str = OWNER, port: int | None = None) -> str:
        """Return the URL of a database over TCP, with the server's own port or a proxy's."""
        assert self.port, "this server was not asked to listen on TCP, or was never started"
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    # --- running it

    @property
    def running(self) -> bool:
        """Return True if it was started and has not been stopped or killed since."""
        return self._process is not None

    def start(self) -> "PostgresqlServer":
        """Start the program and wait until it serves. After `stop` or `kill`, it has its earlier data."""
        assert not self.running, "the server is running already"
        if not (self.folder / "data").exists():
            self._make_data()
        while not self._starts():
            pass
        return self

    def stop(self) -> None:
        """Stop it normally, or kill it if that takes too long. Does nothing if it is not running."""
        process = self._process
        if process is None:
            return
        self.thaw()
        process.send_signal(signal.SIGINT)  # "fast": connections are closed, not waited for
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it with all its processes, as a crash would, so that no process can still finish a commit."""
        process, self._process = self._process, None
        if process is None:
            return
        self._frozen = ()
        if process.poll() is None:
            for pid in [*_stopped(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)  # another process may have this id by now

    def freeze(self) -> None:
        """Keep connections open but answer nothing until `thaw`."""
        self._frozen = [*_stopped(self.pid), self.pid]

    def thaw(self) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                resume(pid)
        self._frozen = ()

    def close(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # --- databases and queries

    def fresh(self, *, tcp: bool = False) -> str:
        """Create an empty database and return its ledger URL."""
        name = f"ledger_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.tcp_url(name) if tcp else self.url(name)

    def drop(self, url: str) -> None:
        """Drop a database of `fresh`, even if clients are connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def disconnect(self, url: str) -> None:
        """End all connections to a database of `fresh`."""
        name = urlsplit(url).path.removeprefix("/")
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)

    def sql(self, statement: str, *parameters: object, url: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement as the owner, in autocommit mode, and return its rows."""
        with psycopg.connect(url or self.url(), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    # --- in detail

    def _make_data(self) -> None:
        template = self.template or make_template()
        # Run as the server's user, so that this user owns the files. It may lack access to folders of PATH.
        copy = Path(shutil.which("cp") or "/bin/cp").resolve()
        subprocess.run([copy, "-a", template / "data", self.folder / "data"], check=True, **_as_user())
        if template != self.template:
            shutil.rmtree(template)
        if self.access is not None:
            (self.folder / "data" / "pg_hba.conf").write_text(self.access, encoding="utf-8")

    def _starts(self) -> bool:
        """Start it. Return False if another process took the chosen port before the server did."""
        if self.tcp and not self.port:
            self.port = free_port()
        self._launch()
        if self._serves():
            return True
        assert "in use" in self.log.read_text(encoding="utf-8"), self._story()
        self.port = 0
        return False

    def _launch(self) -> None:
        programs = postgresql_programs()
        assert programs is not None, "this machine has no PostgreSQL"
        settings = {
            "unix_socket_directories": str(self.folder),
            "listen_addresses": "127.0.0.1" if self.tcp else "",
            # its moment would decide which statistics a plan is made with; tests of plans make their own
            "autovacuum": "off",
            "dynamic_shared_memory_type": "mmap",  # in files beside the data, which are removed with it after a kill
            **({"port": str(self.port)} if self.tcp else {}),
            **self.configuration,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("wb") as log:  # each start begins a new log
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", self.folder / "data", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_as_user(self.environment),
            )

    def _serves(self) -> bool:
        """Wait until it answers. Return False if it has exited."""
        assert self._process is not None
        give_up, tick = time.monotonic() + START_SECONDS, threading.Event()
        while not self._answers():
            if self._process.poll() is not None:
                self._process = None
                return False
            assert time.monotonic() < give_up, self._story()
            tick.wait(0.01)
        return True

    def _answers(self) -> bool:
        try:
            self.sql("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def _story(self) -> str:
        return f"PostgreSQL did not start; its log:\n{self.log.read_text(encoding='utf-8')}"


def _run(program: str, *words: "str | Path") -> None:
    programs = postgresql_programs()
    assert programs is not None, "this machine has no PostgreSQL"
    done = subprocess.run([programs / program, *words], capture_output=True, text=True, check=False, **_as_user())
    assert done.returncode == 0, f"{program} failed: {done.stderr}"


def _as_user(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return options to start a program as a user who is not root, in `/`, and without settings of this environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    options: dict[str, Any] = {"env": {**kept, **(environment or {})}, "cwd": "/"}
    if os.geteuid() == 0:
        user = _user()
        options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return options


def _user() -> pwd.struct_passwd:
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in USERS if name in known)


def _private_folder() -> Path:
    """Create a folder for the programs' user, in a place that the user can access, with a short path for the socket."""
    places = [tempfile.gettempdir(), "/tmp", "/var/tmp"]
    place = places[0] if os.geteuid() != 0 else next(filter(_is_open_to_all, places))
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=place))
    if os.geteuid() == 0:
        os.chown(folder, _user().pw_uid, _user().pw_gid)
    return folder


def _is_open_to_all(place: str) -> bool:
    path = Path(place).resolve()
    return path.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.parents))


def _stopped(postmaster: int) -> list[int]:
    """Halt the postmaster, so that it starts no more children, then halt its children, and return them."""
    halt(postmaster)
    children = _children(postmaster)
    for pid in children:
        with suppress(ProcessLookupError):
            halt(pid)
    return children


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]
