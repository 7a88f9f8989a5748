"""A real MariaDB server for tests: private, in its own folder, started and stopped by tests.

It listens on a unix socket and, on request, on a loopback TCP port chosen by the system, never on the default port. It
syncs its log at every commit, so confirmed commits survive `kill`.
"""

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
from tests.services.halting import halt, resume
from tests.services.ports import free_port

SOCKET_PATH_BYTES_MAX = 100  # the system's limit is 107
START_SECONDS = 120.0  # far more than a start takes, recovery included
STOP_SECONDS = 10.0
PROGRAMS = ("mariadbd", "mariadb-install-db")
SYSTEM_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/bin"  # servers are not on every user's PATH
LOG_MB = 32  # of InnoDB; copied with every server
USER = PASSWORD = "penstock"


def mariadb_program(name: str) -> str | None:
    """Return the path of a program of the server, or None if it is not installed."""
    return shutil.which(name) or shutil.which(name, path=SYSTEM_FOLDERS)


def install_template(folder: Path) -> Path:
    """Create the files of an empty server, to be copied for each server, which is ten times as fast."""
    data = folder / "template"
    program = mariadb_program("mariadb-install-db")
    assert program is not None, "this machine has no MariaDB"
    command = [program, "--no-defaults", f"--datadir={data}", f"--innodb-log-file-size={LOG_MB}M", *_as_root()]
    command += ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    path = f"{os.environ.get('PATH', '')}:{SYSTEM_FOLDERS}"
    # A starting server removes all temporary tables in its TMPDIR, even those of another one.
    environment = {**os.environ, "PATH": path, "TMPDIR": str(folder)}
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert made.returncode == 0, f"mariadb-install-db failed:\n{made.stdout}\n{made.stderr}"
    return data


@dataclass(kw_only=True)
class MariadbServer:
    """One server. ``folder`` holds its data, which survives `stop`, `kill` and another `start`.

    ``template`` is a folder of `install_template`. ``configuration`` has additional arguments, such as
    ``("--max-connections=5",)``; it may change between two starts. ``environment`` is added to the server's.
    """

    folder: Path
    template: Path
    tcp: bool = False
    configuration: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)

    port: int = field(default=0, init=False)  # 0: none; chosen at the first start and kept
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _socket_folder: Path | None = field(default=None, init=False)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1), init=False)

    # --- where it is

    @property
    def socket(self) -> Path:
        wanted = self.folder / "mariadb.sock"
        if len(os.fsencode(wanted)) <= SOCKET_PATH_BYTES_MAX:
            return wanted
        if self._socket_folder is None:
            self._socket_folder = Path(tempfile.mkdtemp(prefix="mariadb-"))
        return self._socket_folder / "mariadb.sock"

    @property
    def log(self) -> Path:
        return self.folder / "mariadb.log"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def url_of(self, database: str) -> str:
        """Return a ledger URL over the unix socket, for a user who owns only that database."""
        return f"mysql://{USER}:{PASSWORD}@localhost/{database}?unix_socket={self.socket}"

    def tcp_url_of(self, database: str, port: int | None = None) -> str:
        """Return a ledger URL over TCP, with the server's own port or a proxy's."""
        assert self.port, "this server was not asked to listen on TCP, or was never started"
        return f"mysql://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    # --- running it

    @property
    def running(self) -> bool:
        """Return True if it was started and has not been stopped or killed since."""
        return self._process is not None

    def start(self) -> "MariadbServer":
        """Start the program and wait until it serves. After `stop` or `kill`, it has its earlier data."""
        assert not self.running, "the server is running already"
        if not self._data.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.copytree(self.template, self._data)
        while not self._starts():
            pass
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
        """Kill it, and remove its data and its files outside its folder."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)
            self._socket_folder = None

    # --- databases and queries

    def fresh(self, options: str = "") -> str:
        """Create an empty database and return its ledger URL. ``options`` as in ``CHARACTER SET latin1``."""
        return self.url_of(self.fresh_database(options))

    def fresh_tcp(self, options: str = "") -> str:
        """Create an empty database and return its ledger URL over TCP."""
        return self.tcp_url_of(self.fresh_database(options))

    def fresh_database(self, options: str = "") -> str:
        """Create an empty database and return its name."""
        name = f"ledger_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} {options}")
        for host in ("localhost", "%"):
            self.sql(f"CREATE USER IF NOT EXISTS '{USER}'@'{host}' IDENTIFIED BY '{PASSWORD}'")
            self.sql(f"GRANT ALL ON {name}.* TO '{USER}'@'{host}'")
        return name

    def drop(self, url: str) -> None:
        """Drop the database of a URL that `fresh` returned, even if connections hold locks in it."""
        self.disconnect(url)
        self.sql(f"DROP DATABASE IF EXISTS {_name_of(url)}")

    def disconnect(self, url: str) -> None:
        """End every connection to the database of a URL that `fresh` returned."""
        for (id,) in self.sql("SELECT id FROM information_schema.processlist WHERE db = %s", _name_of(url)):
            with suppress(pymysql.Error):  # it has ended already
                self.sql(f"KILL {id}")

    def sql(self, statement: str, *parameters: object) -> Sequence[tuple[Any, ...]]:
        """Run one statement as root and return its rows."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def connect(self, database: str | None = None) -> "pymysql.Connection[Any]":
        """Open a connection for the tests themselves, as root."""
        return pymysql.connect(
            unix_socket=str(self.socket),
            user="root",
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=10,
            read_timeout=60,
        )

    # --- in detail

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _starts(self) -> bool:
        """Start it. Return False if another process took the chosen port before the server did."""
        if self.tcp and not self.port:
            self.port = free_port()
        self._launch()
        if self._serves():
            return True
        assert "already in use" in self.log.read_text(encoding="utf-8", errors="replace"), self._story()
        self.port = 0
        return False

    def _launch(self) -> None:
        program = mariadb_program("mariadbd")
        assert program is not None, "this machine has no MariaDB"
        self.socket.unlink(missing_ok=True)
        self.log.write_bytes(b"")  # each start begins a new log
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, *self._words()],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _words(self) -> list[str]:
        words = ["--no-defaults", f"--datadir={self._data}", f"--socket={self.socket}", *_as_root()]
        words += [f"--pid-file={self.folder / 'mariadb.pid'}", f"--tmpdir={self.folder}", "--skip-name-resolve"]
        words += ["--innodb-buffer-pool-size=64M", f"--innodb-log-file-size={LOG_MB}M", "--performance-schema=off"]
        words += ["--innodb-flush-log-at-trx-commit=1", "--max-connections=200", "--skip-log-bin"]
        words += [f"--port={self.port}", "--bind-address=127.0.0.1"] if self.tcp else ["--skip-networking"]
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
            tick.wait(0.01)
        return True

    def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        try:
            self.connect().close()
        except pymysql.Error:
            return False
        return True

    def _story(self) -> str:
        return f"MariaDB did not start; its log:\n{self.log.read_text(encoding='utf-8', errors='replace')}"

    def _end(self, number: signal.Signals) -> None:
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


def _as_root() -> list[str]:
    """Return the option without which the server refuses to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]
