import pytest

from penstock.errors import ConfigurationError
from penstock.pipeline import extra


def test_with_the_extra_installed_nothing_is_said() -> None:
    extra.require_spark()


def test_without_it_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "find_spec", lambda name: None if name in {"pyspark", "deltalake"} else object())
    with pytest.raises(ConfigurationError) as caught:
        extra.require_spark()
    assert str(caught.value) == (
        "Pipelines run on Spark, and pyspark, deltalake cannot be found here: run pip install 'penstock[spark]'."
    )
