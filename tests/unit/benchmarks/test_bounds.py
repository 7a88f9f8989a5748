"""`make bench CHECK=1`: the bounds belong to the figures of the pages, and a ratio out of bounds fails with a line."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.__main__ import main
from benchmarks.check.bounds import BOUNDS, README, Bound
from benchmarks.check.runner import Ratios, check, commands, ratios_in, ratios_of_redis, run_benchmark

ROOT = Path(__file__).parents[3]
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in {bound.page for bound in BOUNDS}}
SLACK = (0.5, 0.85)  # of the figure: a bound in between is generous, and still fails if the figure is halved
IDLE = Bound(name="idle", command=("benchmarks.none",), figures=("0.2 %",), at_most=0.006)
FAST = Bound(name="fast", command=("benchmarks.none",), figures=("3.1 x",), at_least=2.1)


def figures_table(text: str) -> Iterator[str]:
    """Yield the figures of each row in the README's table: what it says of Penstock and of the others."""
    section = text.partition("\n## Figures\n")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| .*\|$", section, re.MULTILINE):
        name, own, others, _ = (cell.strip() for cell in line.strip("|").split("|"))
        if name:
            yield " | ".join((name, own, others))


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)
def test_the_page_has_the_texts_of_every_bound(bound: Bound) -> None:
    for figure in bound.figures:
        assert figure in TEXTS[bound.page], "the figure was changed: change its bound in benchmarks/check/bounds.py too"


@pytest.mark.parametrize("row", list(figures_table(TEXTS[README])))
def test_every_figure_in_the_table_of_the_readme_has_a_bound(row: str) -> None:
    left = row
    for figure in sorted((f for bound in BOUNDS if bound.page == README for f in bound.figures), key=len, reverse=True):
        left = left.replace(figure, "")
    assert not re.findall(r"\d[\d.,]*", left), "add a bound to benchmarks/check/bounds.py"


def test_the_table_of_the_readme_is_found() -> None:
    assert len(list(figures_table(TEXTS[README]))) >= 4


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.name)
def test_every_bound_is_near_its_figure(bound: Bound) -> None:
    ratio = re.search(r"\(([\d.]+) x\)", bound.figures[0])
    assert (bound.at_least is None) != (bound.at_most is None)
    if ratio is None:
        assert bound.page != README or bound.at_most is not None, "write the ratio beside the figure, as in (1.7 x)"
    else:
        assert bound.at_least is not None
        assert SLACK[0] <= bound.at_least / float(ratio[1]) <= SLACK[1]


def test_names_are_unique_and_every_command_is_a_benchmark() -> None:
    assert len({bound.name for bound in BOUNDS}) == len(BOUNDS)
    for module, *_ in commands(BOUNDS):
        name = module.removeprefix("benchmarks.")
        assert (ROOT / f"benchmarks/{name}.py").exists() or (ROOT / f"benchmarks/{name}/__main__.py").exists()


class Machine:
    """Returns these ratios, one after another, and counts the runs."""

    def __init__(self, *ratios: Ratios) -> None:
        self.ratios = list(ratios)
        self.runs: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> Ratios:
        self.runs.append(command)
        return self.ratios.pop(0)


def test_ratios_within_their_bounds_pass_with_one_run_for_each_command() -> None:
    machine = Machine({"fast": 2.1, "idle": 0.006})

    assert check([FAST, IDLE], measure=machine, allow_missing=False) == 0
    assert machine.runs == [("benchmarks.none",)]


@pytest.mark.parametrize(("bound", "value", "limit"), [(FAST, 1.9, "at least 2.1"), (IDLE, 0.02, "at most 0.006")])
def test_a_figure_that_does_not_hold_twice_fails_with_one_line(
    bound: Bound, value: float, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine({bound.name: value}, {bound.name: value})

    assert check([bound], measure=machine, allow_missing=True) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f'FAILS: README.md: "{bound.figures[0]}" ({bound.name}) measured {value:g}, bound {limit}'


def test_a_ratio_is_measured_again_once_and_one_that_held_before_is_kept() -> None:
    other = replace(FAST, name="other")
    machine = Machine({"fast": 1.0, "other": 3.0}, {"fast": 3.0, "other": 1.0})

    assert check([FAST, other], measure=machine, allow_missing=False) == 0
    assert len(machine.runs) == 2


def test_a_ratio_that_cannot_be_measured_fails_unless_that_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check([FAST], measure=Machine({}), allow_missing=False) == 1
    assert '"3.1 x" (fast) not measured here, bound at least 2.1: python -m benchmarks.none' in capsys.readouterr().err
    assert check([FAST], measure=Machine({}), allow_missing=True) == 0
    assert capsys.readouterr().out.startswith("left out: ")


def test_a_failing_ratio_that_cannot_be_measured_again_still_fails() -> None:
    assert check([FAST], measure=Machine({"fast": 1.0}, {}), allow_missing=True) == 1


def test_a_benchmark_runs_as_a_process_and_writes_its_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measuring.py").write_text(
        "import json, pathlib, sys\n"
        "if 'broken' in sys.argv: sys.exit(3)\n"
        "pathlib.Path(sys.argv[sys.argv.index('--json') + 1]).write_text(json.dumps({'fast': 3, 'slow': None}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert run_benchmark(("measuring",)) == {"fast": 3.0}
    assert run_benchmark(("measuring", "broken")) == {}


def test_the_figures_of_redis_have_ratios_to_each_consumer_and_their_own() -> None:
    figures = [
        {"contestant": "penstock async", "empty_rate": 30.0, "recovery": "5.0"},
        {"contestant": "bullmq", "empty_rate": 20.0, "recovery": "60.0"},
        {"contestant": "sidekiq", "empty_rate": 5.0, "recovery": "lost 10 of 10"},
        {"contestant": "taskiq", "empty_rate": None, "recovery": None},
    ]
    found = ratios_of_redis(json.dumps({"figures": figures, "ratios": {"redis plain / bare": 0.4}}))
    assert found["redis async / bullmq"] == pytest.approx(1.5)
    assert found["redis async / sidekiq"] == pytest.approx(6.0)
    assert found["redis recovery: bullmq / async"] == pytest.approx(12.0)
    assert found["redis plain / bare"] == pytest.approx(0.4)
    assert not [name for name in found if "taskiq" in name or name == "redis recovery: sidekiq / async"]


def test_a_file_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="an object of ratios by name"):
        ratios_in(json.dumps([1.0]))


def test_the_command_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.__main__.BOUNDS", [FAST])
    monkeypatch.setattr("benchmarks.__main__.run_benchmark", Machine({}, {"fast": 3.0}))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--check", "--allow-missing"])
    assert main() == 0
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--check"])
    assert main() == 0
