"""A real PostgreSQL server for tests: private, in a folder of its own, and under the test's command.

It listens on a unix socket, and on a loopback TCP port of the system's choice where asked. PostgreSQL refuses to run as
root: where the tests do, its programs run as the user postgres, or as nobody.
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

DEBIANS_PROGRAMS = Path("/usr/lib/postgresql")  # Debian keeps them out of PATH, a folder a version
OWNER = "penstock"  # may do everything
START_SECONDS = 30.0  # far more than a start takes
STOP_SECONDS = 10.0
USERS = ("postgres", "nobody")  # whom root runs it as: the first that this machine knows


def postgresql_programs() -> Path | None:
    """The folder with initdb and postgres of the newest version; None if this machine has none."""
    debians = sorted(DEBIANS_PROGRAMS.glob("*/bin"), key=lambda folder: float(folder.parent.name), reverse=True)
    in_path = shutil.which("initdb")
    places = [*debians, *([Path(in_path).resolve().parent] if in_path else [])]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def make_template() -> Path:
    """An empty cluster, to be copied by servers: making one takes a second. The caller removes the folder."""
    folder = _private_folder()
    _run("initdb", "--pgdata", folder / "data", "--username", OWNER, "--auth", "trust", *_LOCALE, "--no-sync")
    return folder


_LOCALE = ("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-instructions")


@dataclass(kw_only=True)
class PostgresqlServer:
    """One server. Its data is kept over `stop`, `kill` and another `start`, until `close`.

    ``configuration`` are settings, as in ``{"max_connections": "10"}``; ``access`` replaces pg_hba.conf, which trusts
    everybody. ``environment`` is added to the server's. ``template`` is a folder of `make_template`.
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
        """Its data, socket and log. A short path that its user can reach, which a test's own folder is not."""
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
        """Of one of its databases, over the unix socket."""
        port = f"&port={self.port}" if self.port else ""  # the socket's name has it
        return f"postgresql://{user}@/{database}?host={self.folder}{port}"

    def tcp_url(self, database: str = "postgres", *, user: str = OWNER, port: int | None = None) -> str:
        """The same over TCP, at this server or at a proxy's port."""
        assert self.port, "this server was not asked to listen on TCP, or was never started"
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    # --- running it

    @property
    def running(self) -> bool:
        """Whether it was started and not ended by us since."""
        return self._process is not None

    def start(self) -> "PostgresqlServer":
        """Start the program and wait until it serves. Also after `stop` or `kill`: with the data that it kept."""
        assert not self.running, "the server is running already"
        if not (self.folder / "data").exists():
            self._make_data()
        while not self._starts():
            pass
        return self

    def stop(self) -> None:
        """Let it end in order; it is killed if it does not. Harms nothing if it is not running."""
        process = self._process
        if process is None:
            return
        self.thaw()
        process.send_signal(signal.SIGINT)  # "fast": connections are closed, not waited for
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it as a crash would, with all its processes: nothing is left that could still finish a commit."""
        process, self._process = self._process, None
        if process is None:
            return
        self._frozen = ()
        if process.poll() is None:
            for pid in [*_stopped(process.pid), process.pid]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)  # its number may be another's by now

    def freeze(self) -> None:
        """Its connections stay open, and nothing is answered until `thaw`."""
        self._frozen = [*_stopped(self.pid), self.pid]

    def thaw(self) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                resume(pid)
        self._frozen = ()

    def close(self) -> None:
        """End it and remove its data."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # --- asking it

    def fresh(self, *, tcp: bool = False) -> str:
        """Make a new empty database; its ledger URL."""
        name = f"ledger_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name}")
        return self.tcp_url(name) if tcp else self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database that `fresh` made, whoever is still connected to it."""
        name = urlsplit(url).path.removeprefix("/")
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def disconnect(self, url: str) -> None:
        """End every connection to a database that `fresh` made."""
        name = urlsplit(url).path.removeprefix("/")
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name)

    def sql(self, statement: str, *parameters: object, url: str | None = None) -> list[tuple[Any, ...]]:
        """One statement as the owner, outside of any transaction; its rows."""
        with psycopg.connect(url or self.url(), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    # --- in detail

    def _make_data(self) -> None:
        template = self.template or make_template()
        # By the programs' own user, so that all of it belongs to them; who may not look into every folder of our PATH.
        copy = Path(shutil.which("cp") or "/bin/cp").resolve()
        subprocess.run([copy, "-a", template / "data", self.folder / "data"], check=True, **_as_user())
        if template != self.template:
            shutil.rmtree(template)
        if self.access is not None:
            (self.folder / "data" / "pg_hba.conf").write_text(self.access, encoding="utf-8")

    def _starts(self) -> bool:
        """False if somebody else took the chosen port before the server did."""
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
            "dynamic_shared_memory_type": "mmap",  # in files beside the data, which go with it after a kill
            **({"port": str(self.port)} if self.tcp else {}),
            **self.configuration,
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("wb") as log:  # each start has a log of its own
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", self.folder / "data", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_as_user(self.environment),
            )

    def _serves(self) -> bool:
        """Wait until it answers; False if it ended by itself."""
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
        return f"PostgreSQL did not start; it says:\n{self.log.read_text(encoding='utf-8')}"


def _run(program: str, *words: "str | Path") -> None:
    programs = postgresql_programs()
    assert programs is not None, "this machine has no PostgreSQL"
    done = subprocess.run([programs / program, *words], capture_output=True, text=True, check=False, **_as_user())
    assert done.returncode == 0, f"{program} failed: {done.stderr}"


def _as_user(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """How to start a program: as a user who is not root, at home anywhere, and without settings of ours."""
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
    """A new folder of the programs' user, where that user can reach it and the socket's path stays short."""
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
    """Stop the postmaster, so that it has no more children, and then them; answers the children."""
    halt(postmaster)
    children = _children(postmaster)
    for pid in children:
        with suppress(ProcessLookupError):
            halt(pid)
    return children


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]
