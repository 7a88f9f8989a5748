"""Call `penstock` in this process, as the shell would."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.scene import Scene

from penstock.cli.main import main


@dataclass(frozen=True)
class CommandResult:
    """The output and exit code of one call."""

    exit_code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the JSON document of a call that succeeded."""
        assert self.exit_code == 0, self.err
        return json.loads(self.out)


Call = Callable[..., CommandResult]


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test wrote: other tests write theirs under the same names."""
    yield
    written = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(written):
            del sys.modules[name]


@pytest.fixture
def penstock(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("penstock.cli.exits.leave_within", lambda *_: None)  # this process must not be ended
    monkeypatch.setattr("penstock.cli.main.ignore_handled_signals", lambda: None)  # nor must it ignore signals
    monkeypatch.setattr("penstock.cli.main.leave", sys.exit)  # nor end with os._exit

    def call(*arguments: object) -> CommandResult:
        monkeypatch.setattr("sys.argv", ["penstock", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capfd.readouterr()
        code = end.value.code
        assert isinstance(code, int)
        return CommandResult(code, captured.out, captured.err)

    return call


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Create a table without history, the only one below the current folder."""
    monkeypatch.chdir(tmp_path)
    return Scene.at(tmp_path)


@pytest.fixture
def app_scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Create a pipeline `clicks` of an app without history, whose data directory is in the current folder."""
    monkeypatch.chdir(tmp_path)
    return Scene.of_app(tmp_path)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the value of `--app` for an app with two pipelines, one of them `clicks`."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "shop_of_the_scene", raising=False)
    lines = (
        "from penstock import App, DeltaSink, ObjectSource",
        "app = App()",
        "for name in ('clicks', 'views'):",
        "    source = ObjectSource('landing', queue=f'{name}-files', schema='id long')",
        "    app.pipeline(name, source=source, sink=DeltaSink(f'tables/{name}'))",
    )
    (tmp_path / "shop_of_the_scene.py").write_text("\n".join(lines))
    return "shop_of_the_scene:app"
