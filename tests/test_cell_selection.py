"""The selection among many similar tests."""

from types import SimpleNamespace
from typing import Any, cast

from tests.cell_selection import chosen

METHODS, FRAMEWORKS, PRECISIONS = (
    [f"method{i}" for i in range(12)],
    ["torch", "tensorflow", "jax"],
    ["float32", "float64"],
)


def items_of(function: str) -> list[Any]:
    names = [f"{function}[{f}-{m}-{p}]" for f in FRAMEWORKS for m in METHODS for p in PRECISIONS]
    return [SimpleNamespace(name=name, nodeid=f"tests/test_x.py::{name}") for name in names]


def test_each_value_of_each_parameter_is_tested():
    names = [test.name for test in chosen(items_of("test_one"))]
    for value in (*METHODS, *FRAMEWORKS, *PRECISIONS):
        assert any(value in name.strip("]").replace("[", "-").split("-") for name in names), value
    assert 12 <= len(names) <= 15


def test_the_choice_does_not_depend_on_the_order_of_the_tests():
    tests = items_of("test_one")
    assert [test.name for test in chosen(tests)] == [test.name for test in chosen(cast("list[Any]", tests[::-1]))]


def test_functions_have_different_combinations():
    one, other = ({test.name.partition("[")[2] for test in chosen(items_of(name))} for name in ("test_one", "test_two"))
    assert one != other


def test_a_function_without_parameters_is_tested():
    test = SimpleNamespace(name="test_alone", nodeid="tests/test_x.py::test_alone")
    assert list(chosen([cast("Any", test)])) == [test]
