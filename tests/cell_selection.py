"""A selection of tests for runs that must be quick. Continuous integration runs all, by the option `--all-cells`.

A test function with the marker `many_cells` has a test for each combination of method, framework, form and other
parameters. Without the option only a few of these run, in combinations that differ from function to function, so that
together they reach each method in each framework. Tests with the marker `lengthy` take many seconds, and do not run.
"""

import hashlib
from collections.abc import Iterator

import pytest

_MANY_CELLS, _LENGTHY = "many_cells", "lengthy"
MOST = 2  # tests of a function with many cells


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
    left_out |= {item for tests in by_function.values() for item in set(tests) - set(chosen(tests))}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def chosen(tests: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield up to `MOST` tests of one function, each of which has a value of a parameter that the others lack.

    The order in which they are considered depends on their names alone, so that all workers choose the same tests.
    """
    covered: set[tuple[int, str]] = set()
    left = MOST
    for test in sorted(tests, key=lambda test: hashlib.sha256(test.nodeid.encode()).digest()):
        values = set(enumerate(test.name.removesuffix("]").partition("[")[2].split("-")))
        if left and not values <= covered:
            covered |= values
            left -= 1
            yield test


def _function(test: pytest.Item) -> str:
    return test.nodeid.partition("[")[0]
