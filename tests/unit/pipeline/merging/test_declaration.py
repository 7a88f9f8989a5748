"""The declaration of a merge."""

from typing import Any

import pytest

from penstock import Merge
from penstock.app.pipelines.declaration import check_change_rule
from penstock.errors import UsageError
from penstock.pipeline.merging.declaration import merge_of


def test_one_name_stands_for_a_list_of_one() -> None:
    merge = Merge("id", order_by=["at", "seq"], delete_when="op = 'D'", drop="op")
    assert (merge.key, merge.order_by, merge.drop) == (("id",), ("at", "seq"), ("op",))
    assert merge.compared == ("id", "at", "seq")
    assert merge_of(merge.text()) == merge


def test_the_same_merge_has_the_same_text() -> None:
    one = Merge(["id"], order_by="at", drop=["b", "a"])
    assert one.text() == Merge("id", order_by=["at"], drop=["a", "b"]).text()
    assert one.text() != Merge("id", order_by=["at"], drop=["a"]).text()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": [], "order_by": "at"}, "The merge has no key"),
        ({"key": "id", "order_by": []}, "The merge has no order_by"),
        ({"key": ["id", "id"], "order_by": "at"}, "has the column id twice in key"),
        ({"key": 1, "order_by": "at"}, "The merge has key=1; write the name of a column"),
        ({"key": "id", "order_by": "at", "drop": ["at"]}, "drops at, by which rows of later batches are compared"),
        ({"key": "id", "order_by": "at", "delete_when": " "}, "empty delete_when"),
        ({"key": "_object", "order_by": "at"}, "names _object, which depends on the file"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Merge(**options)


@pytest.mark.parametrize("rule", ["replace", "tail"])
def test_a_merge_does_not_go_with_rules_that_replace_rows(rule: str) -> None:
    with pytest.raises(UsageError, match="A has both: a merge replaces rows by their keys"):
        check_change_rule(rule, wants="A has both")
    for other in (None, "add", "refuse"):
        check_change_rule(other, wants="A has both")
