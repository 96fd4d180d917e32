"""The selection among many similar tests."""

from types import SimpleNamespace
from typing import Any, cast

from tests.cell_selection import MOST, chosen, pytest_collection_modifyitems

METHODS, FRAMEWORKS, PRECISIONS = (
    [f"method{i}" for i in range(12)],
    ["torch", "tensorflow", "jax"],
    ["float32", "float64"],
)


def items_of(function: str) -> list[Any]:
    names = [f"{function}[{f}-{m}-{p}]" for f in FRAMEWORKS for m in METHODS for p in PRECISIONS]
    return [SimpleNamespace(name=name, nodeid=f"tests/test_x.py::{name}") for name in names]


def test_a_few_tests_with_different_values_are_chosen():
    names = [test.name.strip("]").partition("[")[2].split("-") for test in chosen(items_of("test_one"))]
    assert len(names) == MOST
    assert len({method for _, method, _ in names}) == MOST
    assert len({framework for framework, _, _ in names}) > 1


def test_together_many_functions_reach_each_method_in_each_framework():
    tests = (test for number in range(60) for test in chosen(items_of(f"test_{number}")))
    reached = {tuple(test.name.strip("]").partition("[")[2].split("-")[:2]) for test in tests}
    assert reached == {(framework, method) for framework in FRAMEWORKS for method in METHODS}


def test_lengthy_tests_are_left_out_unless_all_are_wanted():
    class Item:
        def __init__(self, marker):
            self.name = self.nodeid = self.marker = marker

        def get_closest_marker(self, name):
            return name == self.marker or None

    for wanted, expected in ((False, ["plain"]), (True, ["plain", "lengthy"])):
        items = cast("list[Any]", [Item("plain"), Item("lengthy")])
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        config = SimpleNamespace(getoption=lambda name, wanted=wanted: wanted, hook=hook)
        pytest_collection_modifyitems(cast("Any", config), items)
        assert [item.name for item in items] == expected


def test_the_choice_does_not_depend_on_the_order_of_the_tests():
    tests = items_of("test_one")
    assert [test.name for test in chosen(tests)] == [test.name for test in chosen(cast("list[Any]", tests[::-1]))]


def test_functions_have_different_combinations():
    one, other = ({test.name.partition("[")[2] for test in chosen(items_of(name))} for name in ("test_one", "test_two"))
    assert one != other


def test_a_function_without_parameters_is_tested():
    test = SimpleNamespace(name="test_alone", nodeid="tests/test_x.py::test_alone")
    assert list(chosen([cast("Any", test)])) == [test]
