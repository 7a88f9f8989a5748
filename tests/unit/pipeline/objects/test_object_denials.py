"""When a refusal to read is charged to the object."""

from penstock.pipeline.objects.denials import OBJECTS_REMEMBERED_MAX, Denials

A, B = b"a", b"b"


def test_a_refusal_alone_is_the_object_s_own() -> None:
    denials = Denials()
    assert [denials.add(A), denials.add(A)] == [False, False]


def test_refusals_of_several_objects_are_not() -> None:
    denials = Denials()
    assert [denials.add(A), denials.add(B), denials.add(A)] == [False, True, True]


def test_a_success_in_between_makes_them_each_object_s_own_again() -> None:
    denials = Denials()
    denials.add(A)
    denials.clear()
    assert not denials.add(B)


def test_no_more_is_remembered_than_needed() -> None:
    denials = Denials()
    for number in range(OBJECTS_REMEMBERED_MAX + 10):
        denials.add(str(number).encode())
    assert len(denials._denied) == OBJECTS_REMEMBERED_MAX
    assert denials.add(b"another")
