"""Record the code of a checkout that one Redis message passes, from the receive call to the ack.

Usage: python scripts/trace_message.py TREE

Starts a private redis-server and, in a second process, `penstock worker` of TREE/src with one plain handler. That
process sends messages and profiles all of its threads. A message's window begins with the command that received it and
ends with the answer to the command that acked it. Prints JSON: the files, classes and functions of the package that ran
in the window, those on the receiving thread's stack included. The first message is not measured, as it pays for lazy
imports; of the others the one with the fewest functions counts, as it met the fewest background jobs.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

APP = """
from penstock import App, Queue

queue = Queue("traced", dict)
app = App.from_config()


@app.handler(queue)
def take(body: dict) -> None:
    pass
"""
MESSAGES = 4  # the first one warms up
START_SECONDS = 30.0  # of the server
IDLE_SECONDS = 2.0  # until a started worker rests, and between two messages
ENTRY_ID = re.compile(rb"\d{13}-\d+")  # of a stream: the ack names it
CHILD = "--child"


def main() -> None:
    if sys.argv[1:2] == [CHILD]:
        child(Path(sys.argv[2]))
        return
    (tree,) = sys.argv[1:]
    print(json.dumps(passed_in(Path(tree).resolve()), indent=2))


def passed_in(tree: Path) -> Mapping[str, Sequence[str]]:
    """Run the child over a server of its own and return its result."""
    with tempfile.TemporaryDirectory(prefix="penstock-trace-") as name:
        folder = Path(name)
        (folder / "traced.py").write_text(APP, encoding="utf-8")
        with redis_server(folder) as url:
            environment = {
                **{key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")},
                "PYTHONPATH": f"{tree / 'src'}:{folder}",
                "PENSTOCK_BROKER": url,
                "PENSTOCK_LEDGER": f"sqlite:///{folder}/ledger.db",
            }
            command = [sys.executable, str(Path(__file__).resolve()), CHILD, str(tree / "src")]
            done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
        result = folder / "passed.json"
        if not result.exists():
            sys.exit(f"the traced worker ended with {done.returncode} and no result:\n{done.stdout}{done.stderr}")
        found: Mapping[str, Sequence[str]] = json.loads(result.read_text(encoding="utf-8"))
        return found


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a server on a unix socket in the folder and return its address."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("no redis-server on the PATH: install it, as in apt-get install redis-server")
    socket = folder / "redis.sock"
    options = ["--unixsocket", str(socket), "--port", "0", "--save", "", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log)
        try:
            give_up = time.monotonic() + START_SECONDS
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > give_up:
                    sys.exit("redis-server did not start:\n" + (folder / "redis.log").read_text(encoding="utf-8"))
                time.sleep(0.01)
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait()


@dataclass(slots=True, kw_only=True)
class Window:
    """All code that ran between a command to Redis and the reply to a later one."""

    body: bytes  # of the message
    functions: set[tuple[str, str]] = field(default_factory=set)  # file, qualified name
    values: set[str] = field(default_factory=set)  # classes whose generated __init__ ran
    entry_id: bytes | None = None  # known once the message was received
    acking: bool = False  # the command that names the entry was sent, after the receive
    ended: bool = False


class Profiler:
    """Watch the calls of every thread; `profile` is for sys.setprofile.

    Only the answer to a command shows that the command was the receive. So the calls of all threads are logged, and for
    the last command of each thread, the length of the log and the thread's stack are kept.
    """

    def __init__(self, source: str) -> None:
        self._package = f"{source}/penstock/"
        self._prefix = len(source) + 1
        self._lock = threading.RLock()
        # All under the lock.
        self._log: list[tuple[CodeType, str | None]] = []  # a call, or a class whose generated __init__ ran
        self._sent_at: dict[int, int] = {}  # length of the log at the last command, by thread
        self._stacks: dict[int, Sequence[CodeType]] = {}  # at the last command, by thread
        self.window: Window | None = None

    def expect(self, body: bytes) -> Window:
        """Begin to search for the message with this body."""
        with self._lock:
            self._log.clear()
            self._sent_at.clear()
            self.window = Window(body=body)
            return self.window

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.window is None or self.window.ended:
            return
        code = frame.f_code
        of_redis = code.co_filename.endswith("redis/connection.py")
        if event == "return" and of_redis and code.co_name == "read_response":
            self._answered(repr(argument).encode())
        elif event == "call" and of_redis and code.co_name == "send_packed_command":
            self._sent(frame)
        elif event == "call" and code.co_filename.startswith(self._package):
            self._record(code, None)
        elif event == "call" and code.co_name == "__init__" and code.co_filename == "<string>":  # a dataclass's
            self._record(code, _class_of(frame))

    def _record(self, code: CodeType, value: str | None) -> None:
        with self._lock:
            self._log.append((code, value))

    def _sent(self, frame: FrameType) -> None:
        with self._lock:
            window, thread = self.window, threading.get_ident()
            assert window is not None
            if window.entry_id is None:
                self._sent_at[thread] = len(self._log)
                self._stacks[thread] = list(_stack(frame))
            elif window.entry_id in repr(frame.f_locals.get("command")).encode():
                window.acking = True

    def _answered(self, answer: bytes) -> None:
        with self._lock:
            window = self.window
            assert window is not None
            if window.entry_id is None and window.body in answer and threading.get_ident() in self._sent_at:
                found = ENTRY_ID.search(answer)
                window.entry_id = found[0] if found else None
            elif window.acking:
                self._end(window)

    def _end(self, window: Window) -> None:
        """Fill the window. The thread that receives is the one that settles."""
        receiver = threading.get_ident()
        stack = [(code, None) for code in self._stacks[receiver]]
        for code, value in [*stack, *self._log[self._sent_at[receiver] :]]:
            if value is not None:
                window.values.add(value)
            elif code.co_filename.startswith(self._package) and not code.co_name.startswith("<"):
                window.functions.add((code.co_filename[self._prefix :], code.co_qualname))
        window.ended = True


def child(source: Path) -> None:
    """Run the worker in this process, with a thread that sends the messages and ends it."""
    from penstock.cli.main import main as penstock

    profiler = Profiler(str(source))
    windows: list[Window] = []
    sender = threading.Thread(target=_send_all, args=(profiler, windows), daemon=True)
    sender.start()  # before profiling begins, so that its own calls are not seen
    threading.setprofile(profiler.profile)
    sys.setprofile(profiler.profile)
    sys.argv = ["penstock", "worker", "traced:app"]
    try:
        penstock()
    finally:
        sys.setprofile(None)
        measured = [window for window in windows[1:] if window.ended]
        if measured:
            least = min(measured, key=lambda window: len(window.functions))
            Path("passed.json").write_text(json.dumps(_result(least)), encoding="utf-8")


def _send_all(profiler: Profiler, windows: list[Window]) -> None:
    for number in range(MESSAGES):
        time.sleep(IDLE_SECONDS)
        body = f"traced message {number}"
        windows.append(profiler.expect(body.encode()))
        send = f"import traced; traced.app.send(traced.queue, {{'text': {body!r}}})"
        subprocess.run([sys.executable, "-c", send], check=True)
        give_up = time.monotonic() + IDLE_SECONDS
        while not windows[-1].ended and time.monotonic() < give_up:
            time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def _result(window: Window) -> Mapping[str, Sequence[str]]:
    names = {name for _, name in window.functions}
    owners = {name.rpartition(".")[0].rpartition(".")[2] for name in names if "." in name and "<locals>" not in name}
    return {
        "files": sorted({path for path, _ in window.functions}),
        "classes": sorted(owners | window.values),
        "functions": sorted(f"{path}: {name}" for path, name in window.functions),
    }


def _class_of(frame: FrameType) -> str | None:
    owner = type(frame.f_locals.get("self"))
    return owner.__name__ if owner.__module__.startswith("penstock") else None


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


if __name__ == "__main__":
    main()
