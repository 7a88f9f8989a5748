"""Declarations of a source's cleanup: invalid ones are refused before anything runs."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.sinks.toy_sink import TOY, ToyTable

from penstock import App, DeltaSink, Handlers, ObjectSource, cleanup
from penstock.app.cleanup import cleanup_of
from penstock.errors import UsageError
from penstock.sinks.registry import SINKS


def source(folder: object, action: Any, *, queue: str = "q") -> ObjectSource:
    return ObjectSource(str(folder), queue=queue, schema="id long", cleanup=action)


def declare(group: Handlers, name: str, folder: object, action: Any = None, *, table: object = None) -> None:
    given = source(folder, action or cleanup.Keep(), queue=f"{name}-q")
    group.pipeline(name, source=given, sink=DeltaSink(str(table or f"s3://lake/{name}")))


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        ("30 days", 30 * 86_400.0),
        ("7d", 7 * 86_400.0),
        (timedelta(hours=1), 3_600.0),
        (90, 90.0),
        (0, 0.0),
        ("0", 0.0),
        ("0 s", 0.0),
        ("0d", 0.0),
        (timedelta(0), 0.0),
    ],
)
def test_after_accepts_durations_and_zero(after: Any, seconds: float) -> None:
    assert cleanup.Delete(after=after).after_seconds == seconds


@pytest.mark.parametrize("after", ["soon", -1, "-1 d", float("inf"), ""])
def test_after_must_be_a_duration(after: Any) -> None:
    with pytest.raises(UsageError, match="after="):
        cleanup.Delete(after=after)


def test_a_delete_needs_after() -> None:
    with pytest.raises(TypeError, match="after"):
        cleanup.Delete()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("declare_invalid", "message"),
    [
        (lambda: cleanup.Tag({}), "1 to 10 tags"),
        (lambda: cleanup.Tag({str(n): "" for n in range(11)}), "1 to 10 tags"),
        (lambda: cleanup.Tag({"aws:x": "y"}), "aws:"),
        (lambda: cleanup.Tag({"": "y"}), "1 to 128"),
        (lambda: cleanup.Tag({"n": "v" * 257}), "256"),
        (lambda: cleanup.Tag({"n": "a?"}), "letters, digits"),
        (lambda: cleanup.Tag({"n": 1}), "not text"),  # type: ignore[dict-item]
        (lambda: cleanup.Move("hdfs://done"), "neither a local folder"),
        (lambda: cleanup.Move("s3://b/a/../c"), "'..'"),
        (lambda: cleanup.Move("s3://b/a//c"), "empty"),
        (lambda: source("landing", cleanup.Tag()), "cannot be tagged"),
        (lambda: source("s3://landing/in", cleanup.Move("done")), "cannot be moved to done"),
        (lambda: source("landing", cleanup.Move("s3://done/x")), "cannot be moved to s3://done/x"),
        (lambda: source("landing", "delete"), "from penstock import cleanup"),
    ],
)
def test_an_invalid_cleanup_is_refused(declare_invalid: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        declare_invalid()


@pytest.mark.parametrize(
    "target",
    [
        "s3://landing/clicks",
        "s3://landing/clicks/",
        "s3://landing/clicks/done",
        "s3://landing/Clicks/done",
        "s3://landing",
        "s3://landing/",
    ],
)
def test_a_move_into_or_above_the_source_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match="announce themselves again"):
        declare(App(), "clicks", "s3://landing/clicks/", cleanup.Move(target))


@pytest.mark.parametrize("target", ["s3://landing/clicks-done", "s3://landing/done/clicks", "s3://done"])
def test_a_target_apart_from_the_source_is_accepted(target: str) -> None:
    app = App()
    declare(app, "clicks", "s3://landing/clicks/", cleanup.Move(target))
    assert [pipeline.name for pipeline in app.pipelines] == ["clicks"]


@pytest.mark.parametrize("spelling", ["{}/in/done", "{}/in/", "{}/x/../in/d", "file://{}/in/d", "{}/link/d", "{}/IN/d"])
def test_a_move_into_the_source_is_refused_in_every_spelling(tmp_path: Path, spelling: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(UsageError, match="announce themselves again"):
        declare(App(), "clicks", tmp_path / "in", cleanup.Move(spelling.format(tmp_path)), table=tmp_path / "t")


def test_a_move_to_a_folder_above_the_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="announce themselves again"):
        declare(App(), "clicks", tmp_path / "a" / "in", cleanup.Move(tmp_path / "a"), table=tmp_path / "t")


def test_a_move_into_the_source_of_another_pipeline_is_refused_in_either_order() -> None:
    for order in (1, -1):
        app = App()
        first, second = (("clicks", cleanup.Move("s3://landing/views/x")), ("views", None))[::order]
        declare(app, first[0], f"s3://landing/{first[0]}", first[1])
        with pytest.raises(UsageError, match="the source of views"):
            declare(app, second[0], f"s3://landing/{second[0]}", second[1])


@pytest.mark.parametrize("target", ["s3://lake/clicks/x", "s3://lake/clicks_quarantine", "s3://lake"])
def test_a_move_into_or_above_a_table_is_refused(target: str) -> None:
    with pytest.raises(UsageError, match="tables of clicks"):
        declare(App(), "clicks", "s3://landing/clicks", cleanup.Move(target))


@pytest.mark.parametrize("action", [cleanup.Delete(after=0), cleanup.Move("s3://done")])
def test_objects_that_another_handler_reads_cannot_be_deleted_or_moved(action: Any) -> None:
    app = App()
    declare(app, "clicks", "s3://landing/clicks", action)
    with pytest.raises(UsageError, match="objects that views also reads"):
        declare(app, "views", "s3://landing")
    with pytest.raises(UsageError, match="objects that thumbs also reads"):
        app.object_handler("thumbs-q", source="s3://landing/clicks/eu", name="thumbs")(lambda found: None)


def test_pipelines_that_share_a_source_may_tag_and_keep_its_objects() -> None:
    app = App()
    declare(app, "clicks", "s3://landing/clicks", cleanup.Tag())
    declare(app, "views", "s3://landing")
    assert [pipeline.name for pipeline in app.pipelines] == ["clicks", "views"]


def test_an_included_group_is_checked_too() -> None:
    app, group = App(), Handlers()
    declare(app, "clicks", "s3://landing/clicks", cleanup.Delete(after="1 d"))
    declare(group, "views", "s3://landing/clicks/eu")
    with pytest.raises(UsageError, match="objects that views also reads"):
        app.include(group)


@pytest.mark.parametrize(
    ("action", "after", "target", "made"),
    [
        (None, None, None, cleanup.Keep()),
        ("tag", None, None, cleanup.Tag()),
        ("delete", "7d", None, cleanup.Delete(after="7d")),
        ("delete", "0", None, cleanup.Delete(after="0")),
        ("move", None, "done", cleanup.Move("done")),
    ],
)
def test_command_line_options_declare_each_cleanup(action: Any, after: Any, target: Any, made: Any) -> None:
    assert cleanup_of(action, after=after, target=target) == made


@pytest.mark.parametrize(
    ("action", "after", "target", "message"),
    [
        ("delete", None, None, "--cleanup-after"),
        ("move", None, None, "--cleanup-to"),
        ("tag", None, "done", "--cleanup-to"),
        (None, "7d", None, "--cleanup-after needs --cleanup tag"),
        ("burn", None, None, "not known"),
    ],
)
def test_an_incomplete_or_unknown_cleanup_on_the_command_line_is_refused(
    action: Any, after: Any, target: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        cleanup_of(action, after=after, target=target)


@pytest.mark.parametrize("prefix", ["", "toy:"])
def test_a_move_into_a_table_is_refused_with_and_without_its_format_prefix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str
) -> None:
    monkeypatch.setitem(SINKS, "toy", TOY)
    group = Handlers()
    sink = ToyTable(f"{prefix}{tmp_path / 'table'}")
    group.pipeline("written", source=source(tmp_path / "a", cleanup.Keep(), queue="a"), sink=sink)
    with pytest.raises(UsageError, match="where the tables of written are"):
        declare(group, "moved", tmp_path / "b", cleanup.Move(str(tmp_path / "table" / "done")), table=tmp_path / "t")
