"""Python processes that start with Penstock imported: forked from a server of this pytest process.

`python -m penstock` spends one to two seconds of CPU on imports, and tests start it many hundreds of times.
`ForkedPopen` is a `subprocess.Popen` that runs `python -m MODULE` or `python -c CODE` as a copy of a process that has
only imported the modules of its commands. The copy has the given working directory, environment, open files and
session, and its own process id, signals and exit. Anything else (another program, a function before exec) is started as
usual. Tests of the start itself, such as its imports or its behaviour in a shell, use `subprocess`.

The parent of a copy is a process that waits for it and reports its exit status, so a killed copy leaves no zombie.
"""

import atexit
import gc
import inspect
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

IMPORTED = (
    "penstock",
    "penstock.cli.main",
    "penstock.cli.worker",
    "penstock.app.app",
    "penstock.app.serving",
    "penstock.app.brokers",
    "penstock.app.registry",
    "penstock.app.tracing",
    "penstock.brokers.sqlite.broker",
    "penstock.brokers.redis",
    "penstock.brokers.sqs",
    "penstock.cli.ingest",
    "penstock.cli.status",
    "penstock.ledger",
    "penstock.ledger.ledger",
    "penstock.operations.ingest.ingest",
    "penstock.pipeline.batch_record",
    "penstock.pipeline.spark.run",
    "penstock.sinks.delta.sink",
    "alembic.command",  # with the first ledger
    "boto3",
    "obstore",
    "pandas",  # PyArrow imports it with the first values that it converts
    "psycopg",
    "pymysql",
)
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1"}  # NumPy's threads, which a copy would not have
UNDERSTOOD = {"PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED"}
LOCALE = ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE")
_UNSIGNED = struct.Struct("=I")
_SIGNED = struct.Struct("=i")


class ForkedPopen(subprocess.Popen[Any]):
    """A process that is forked if possible, else started as usual. Any thread may create one."""

    _status: socket.socket | None = None  # delivers the exit status of a copy; None: started as usual
    _wait_status: int | None = None  # under Popen's own lock

    def _execute_child(self, *given: Any) -> None:
        usual: Callable[..., None] = subprocess.Popen._execute_child  # type: ignore[attr-defined] # CPython's own hook
        asked = inspect.signature(usual).bind(self, *given).arguments
        request = _request(asked)
        if request is None:
            usual(self, *given)
            return
        streams = ("p2cread", "c2pwrite", "errwrite")
        inherited = [number if asked[end] == -1 else asked[end] for number, end in enumerate(streams)]
        try:
            self.pid, self._status = _server().fork(request, inherited)
            self._child_created = True
        finally:
            ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[end] for end in ends))  # type: ignore[attr-defined] # as the usual one does

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        status = self._ended(None if wait_flags == 0 else 0.0)
        return (0, 0) if status is None else (self.pid, status)

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self._status is None:
            code: int | None = super()._internal_poll(*given, **named)  # type: ignore[misc]
            return code
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                if (status := self._ended(0.0)) is not None:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _ended(self, seconds: float | None) -> int | None:
        """Return the wait status, or None if it has not arrived in time."""
        assert self._status is not None
        if self._wait_status is None and select.select([self._status], [], [], seconds)[0]:
            received = self._status.recv(_SIGNED.size)
            # No status arrives if the parent was killed with the copy.
            self._wait_status = _SIGNED.unpack(received)[0] if received else signal.SIGKILL.value
        return self._wait_status


def run_forked(command: Sequence[str], *, timeout: float, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a process to its end, as `subprocess.run` does with its output captured as text."""
    with ForkedPopen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _request(asked: Mapping[str, Any]) -> bytes | None:
    """Return the request for the server, or None if the process needs an exec."""
    command = asked["args"]
    simple = (
        sys.platform == "linux"
        and isinstance(command, (list, tuple))
        and len(command) >= 3
        and command[0] == sys.executable
        and command[1] in ("-m", "-c")
        and all(isinstance(word, str) for word in command)
        and not asked["shell"]
        and asked["executable"] is None
        and asked["preexec_fn"] is None
        and not asked["pass_fds"]
        and all(asked.get(name) is None for name in ("gid", "gids", "uid"))
        and asked["umask"] == -1
        and asked["process_group"] == -1
    )
    environment = os.environ if asked["env"] is None else asked["env"]
    # Variables that Python itself reads before it runs anything.
    own = {name for name in environment if name.startswith("PYTHON")} - {
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "PYTHONUNBUFFERED",
    }
    if not simple or own or any(environment.get(name) != os.environ.get(name) for name in LOCALE):
        return None
    return json.dumps(
        {
            "command": list(command),
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "environment": dict(environment),
            "session": asked["start_new_session"],
        }
    ).encode()


class _Server:
    """The process that is copied. Calls of several threads take turns."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.services.forked_process", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                env={**os.environ, **WITHOUT_THREADS},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, request: bytes, inherited: Sequence[int]) -> tuple[int, socket.socket]:
        """Return the process id of the copy, and the socket for its exit status."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            head = _UNSIGNED.pack(len(request))
            socket.send_fds(self._control, [head], [theirs.fileno(), *inherited])
            self._control.sendall(request)
        received = ours.recv(_SIGNED.size, socket.MSG_WAITALL)
        assert received, "the server of copies has ended"
        return _SIGNED.unpack(received)[0], ours

    def close(self) -> None:
        self._control.close()
        self._process.wait()


_SERVERS: dict[int, _Server] = {}  # by the process that uses it: a copy of a pytest process must not share its server
_STARTING = threading.Lock()


def _server() -> _Server:
    with _STARTING:
        if os.getpid() not in _SERVERS:
            _SERVERS[os.getpid()] = _Server()
            atexit.register(_SERVERS[os.getpid()].close)
        return _SERVERS[os.getpid()]


# --- in the server


def serve(control: socket.socket) -> dict[str, Any]:
    """Copy this process for each request. Return the request, in the copy; end when the tests do."""
    while True:
        head, files, _, _ = socket.recv_fds(control, _UNSIGNED.size, 4)
        if not head:
            os._exit(0)
        (size,) = _UNSIGNED.unpack(head)
        request = control.recv(size, socket.MSG_WAITALL)
        if os.fork() == 0:
            control.close()
            return _copied(json.loads(request), files)
        for file in files:
            os.close(file)
        _reap()


def _copied(request: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
    """Fork once more: this process stays to wait for the other, which is the copy."""
    status, *streams = files
    pid = os.fork()
    if pid:
        for file in streams:
            os.close(file)
        _stay(pid, status)
    os.close(status)
    for number, file in enumerate(streams):
        os.dup2(file, number)
    for file in streams:
        if file > 2:
            os.close(file)
    return request


def _stay(pid: int, status: int) -> NoReturn:
    for meant_for_the_copy in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(meant_for_the_copy, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)  # so that a pipe ends when the copy closes it
    with socket.socket(fileno=status) as answers:
        answers.sendall(_SIGNED.pack(pid))
        _, ended = os.waitpid(pid, 0)
        answers.sendall(_SIGNED.pack(ended))
    os._exit(0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def become(request: dict[str, Any]) -> None:
    """Set this process up like a new Python with this command, and run it."""
    command: list[str] = request["command"]
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.orig_argv[:] = command
    first = request["folder"] if command[1] == "-m" else ""
    added = [entry for entry in request["environment"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [first, *added, *_BASE_PATH]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, unbuffered=bool(os.environ.get("PYTHONUNBUFFERED")))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if command[1] == "-m":
        sys.argv[:] = [command[2], *command[3:]]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = ["-c", *command[3:]]
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(command[2], "<string>", "exec"), main.__dict__)


def _stream(number: int, *, unbuffered: bool) -> TextIO:
    """Return standard input, output or error, as Python opens it."""
    if number == 0:
        return open(0, closefd=False)
    file: Any = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    errors = "backslashreplace" if number == 2 else None
    return io.TextIOWrapper(file, errors=errors, line_buffering=number == 2 or file.isatty(), write_through=unbuffered)


_BASE_PATH: list[str] = []

if __name__ == "__main__":
    left_out = {"", str(Path.cwd()), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    _BASE_PATH += [entry for entry in sys.path if entry not in left_out]
    for module in IMPORTED:
        import_module(module)
    assert threading.active_count() == 1, "a thread would not be copied"
    gc.freeze()
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
