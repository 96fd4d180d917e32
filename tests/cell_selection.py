"""A selection of tests for runs that must be quick. Continuous integration runs all, by the option `--all-cells`.

A test function with the marker `many_cells` has a test for each combination of method, framework, form and other
parameters. Without the option only one of these runs, in a combination that differs from function to function, so that
hundreds of functions together reach each method in each framework. Tests with the marker `lengthy` take many seconds,
and do not run.
"""

import hashlib

import pytest

_MANY_CELLS, _LENGTHY = "many_cells", "lengthy"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-cells", action="store_true", help=f"run all tests, whether marked {_MANY_CELLS} or {_LENGTHY} or not"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all-cells"):
        return
    by_function: dict[str, list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        if item.get_closest_marker(_LENGTHY) is not None:
            left_out.add(item)
        elif item.get_closest_marker(_MANY_CELLS) is not None:
            by_function.setdefault(_function(item), []).append(item)
    for tests in by_function.values():
        left_out |= set(tests) - {chosen(tests)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def chosen(tests: list[pytest.Item]) -> pytest.Item:
    """Return one test of a function.

    The choice depends on the tests' names alone, so that all workers choose the same one.
    """
    return min(tests, key=lambda test: hashlib.sha256(test.nodeid.encode()).digest())


def _function(test: pytest.Item) -> str:
    return test.nodeid.partition("[")[0]
