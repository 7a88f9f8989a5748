"""Where spans go. Each in a process of its own: OpenTelemetry has one provider a process."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from penstock.app.tracing import open_tracing, tracing_of
from penstock.config import Settings
"""


def told(code: str, **environment: str) -> str:
    """What a process prints."""
    done = subprocess.run(
        [sys.executable, "-c", RUN + code], env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


RESOURCE = """
settings = Settings(tracing_enabled=True, **{given})
open_tracing(settings, worker="host-1")
found = dict(trace.get_tracer_provider().resource.attributes)
names = ("service.name", "service.version", "deployment.environment.name", "service.instance.id", "team")
print([found.get(name) for name in names])
"""


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ({}, {}, ["penstock", None, None, "host-1", None]),
        ({}, {"OTEL_SERVICE_NAME": "shop"}, ["shop", None, None, "host-1", None]),
        (
            {"log_service": "ours", "log_service_version": "7", "log_environment": "test"},
            {"OTEL_SERVICE_NAME": "shop", "OTEL_RESOURCE_ATTRIBUTES": "team=a,service.version=8"},
            ["ours", "7", "test", "host-1", "a"],
        ),
    ],
)
def test_the_service_is_named_by_the_settings_and_else_by_opentelemetrys_variables(
    given: dict[str, str], environment: dict[str, str], expected: list[str | None]
) -> None:
    assert told(RESOURCE.format(given=given), **environment) == str(expected)


def test_the_applications_own_provider_is_left_as_it_is() -> None:
    code = """
own = TracerProvider()
trace.set_tracer_provider(own)
open_tracing(Settings(tracing_enabled=True), worker="w")
print(trace.get_tracer_provider() is own, own._active_span_processor._span_processors)
"""
    assert told(code) == "True ()"


def test_one_process_has_one_provider_however_often_it_is_opened() -> None:
    code = """
open_tracing(Settings(tracing_enabled=True), worker="w")
first = trace.get_tracer_provider()
open_tracing(Settings(tracing_enabled=True), worker="w")
print(trace.get_tracer_provider() is first, len(first._active_span_processor._span_processors))
"""
    assert told(code) == "True 1"


def test_without_the_setting_nothing_of_opentelemetry_is_imported() -> None:
    assert told('print(type(tracing_of(Settings(), worker="w")).__name__)') == "NoTracing"
    light = "import sys; from penstock.app.tracing import tracing_of; from penstock.config import Settings; "
    light += "tracing_of(Settings(), worker='w'); print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_a_missing_extra_is_one_sentence(missing: str, tmp_path: Path) -> None:
    app = tmp_path / "shop.py"
    app.write_text("from penstock import App\napp = App.from_config()\n@app.handler('q')\ndef work(body): pass\n")
    code = (
        f"import sys, importlib.util; found = importlib.util.find_spec\n"
        f"def find(name, *more):\n"
        f"    if (name + '.').startswith({missing!r} + '.'): return None\n"
        f"    return found(name, *more)\n"
        f"importlib.util.find_spec = find\n"
        f"sys.argv = ['penstock', 'worker', 'shop:app']\n"
        f"from penstock.cli.main import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), "PENSTOCK_TRACING_ENABLED": "1"},
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert "pip install 'penstock[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_collector_that_is_away_does_not_keep_a_process() -> None:
    """The exporter would try again for ten seconds, and shutting its provider down would wait for thirty."""
    code = """
import time
tracing = open_tracing(Settings(tracing_enabled=True), worker="w")
with tracing.stage("any"):
    pass
began = time.monotonic()
tracing.begin_flush()(0.2)
print(time.monotonic() - began < 9)  # so far from ten as a busy machine allows
"""
    assert told(code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") == "True"
