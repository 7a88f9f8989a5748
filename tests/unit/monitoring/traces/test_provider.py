"""Tracer providers. Each test starts a process, since OpenTelemetry has one provider per process."""

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


def output_of(code: str, **environment: str) -> str:
    """Return what a process that runs this code prints."""
    completed = subprocess.run(
        [sys.executable, "-c", RUN + code], env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), **environment},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip()


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
def test_the_service_is_named_by_settings_before_opentelemetry_variables(
    given: dict[str, str], environment: dict[str, str], expected: list[str | None]
) -> None:
    assert output_of(RESOURCE.format(given=given), **environment) == str(expected)


def test_the_applications_provider_is_unchanged() -> None:
    code = """
own = TracerProvider()
trace.set_tracer_provider(own)
open_tracing(Settings(tracing_enabled=True), worker="w")
print(trace.get_tracer_provider() is own, own._active_span_processor._span_processors)
"""
    assert output_of(code) == "True ()"


def test_opening_tracing_again_reuses_the_provider() -> None:
    code = """
open_tracing(Settings(tracing_enabled=True), worker="w")
first = trace.get_tracer_provider()
open_tracing(Settings(tracing_enabled=True), worker="w")
print(trace.get_tracer_provider() is first, len(first._active_span_processor._span_processors))
"""
    assert output_of(code) == "True 1"


def test_without_the_setting_opentelemetry_is_not_imported() -> None:
    assert output_of('print(type(tracing_of(Settings(), worker="w")).__name__)') == "NoTracing"
    light = "import sys; from penstock.app.tracing import tracing_of; from penstock.config import Settings; "
    light += "tracing_of(Settings(), worker='w'); print('opentelemetry' in sys.modules)"
    completed = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True, timeout=60)
    assert completed.stdout.strip() == "False"


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_a_missing_extra_is_named_without_a_traceback(missing: str, tmp_path: Path) -> None:
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
    completed = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path), "PENSTOCK_TRACING_ENABLED": "1"},
    )  # fmt: skip
    assert completed.returncode == 78, completed.stderr
    assert "pip install 'penstock[otel]'" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_an_unavailable_collector_does_not_delay_the_end_of_a_process() -> None:
    """The exporter would retry for ten seconds, and a shutdown of its provider would wait thirty."""
    code = """
import time
tracing = open_tracing(Settings(tracing_enabled=True), worker="w")
with tracing.stage("any"):
    pass
began = time.monotonic()
tracing.begin_flush()(0.2)
print(time.monotonic() - began < 9)  # below ten, with a margin for a busy machine
"""
    assert output_of(code, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9") == "True"
