"""The selection among many similar tests."""

from types import SimpleNamespace
from typing import Any, cast

from tests.cell_selection import chosen, pytest_collection_modifyitems

METHODS, FRAMEWORKS, PRECISIONS = (
    [f"method{i}" for i in range(12)],
    ["torch", "tensorflow", "jax"],
    ["float32", "float64"],
)


def items_of(function: str) -> list[Any]:
    names = [f"{function}[{f}-{m}-{p}]" for f in FRAMEWORKS for m in METHODS for p in PRECISIONS]
    return [SimpleNamespace(name=name, nodeid=f"tests/test_x.py::{name}") for name in names]


def test_together_hundreds_of_functions_reach_each_method_in_each_framework():
    tests = (chosen(items_of(f"test_{number}")) for number in range(300))
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
    assert chosen(tests).name == chosen(tests[::-1]).name


def test_functions_have_different_combinations():
    one, other = (chosen(items_of(name)).name.partition("[")[2] for name in ("test_one", "test_two"))
    assert one != other


def test_one_test_of_a_function_with_many_cells_is_left():
    class Item:
        def __init__(self, name):
            self.name, self.nodeid = name, f"tests/test_x.py::{name}"

        def get_closest_marker(self, name):
            return name == "many_cells" or None

    items = cast("list[Any]", [Item(name) for name in ("test_one[a]", "test_one[b]", "test_one[c]", "test_alone")])
    left_out: list[Any] = []
    config = SimpleNamespace(
        getoption=lambda name: False, hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    )
    pytest_collection_modifyitems(cast("Any", config), items)
    assert [item.name.partition("[")[0] for item in items] == ["test_one", "test_alone"]
    assert len(left_out) == 2
