"""A selection among the many similar tests of one function, for runs that must be quick.

A test function with the marker `many_cells` has a test for each combination of method, framework, form and other
parameters. Without the option `--all-cells`, only some of these tests run. They are chosen so that each value of each
parameter occurs, in combinations that differ from function to function. Continuous integration runs all.
"""

import hashlib
from collections.abc import Iterator

import pytest

_MARKER = "many_cells"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-cells", action="store_true", help=f"run all tests of functions with the marker {_MARKER}, not some"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--all-cells"):
        return
    by_function: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(_MARKER) is not None:
            by_function.setdefault(_function(item), []).append(item)
    if not by_function:
        return
    left_out = {item for tests in by_function.values() for item in set(tests) - set(chosen(tests))}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def chosen(tests: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield tests of one function in which each value of each parameter occurs.

    The order in which they are considered depends on their names alone, so that all workers choose the same tests.
    """
    covered: set[tuple[int, str]] = set()
    for test in sorted(tests, key=lambda test: hashlib.sha256(test.nodeid.encode()).digest()):
        values = set(enumerate(test.name.removesuffix("]").partition("[")[2].split("-")))
        if not values <= covered:
            covered |= values
            yield test


def _function(test: pytest.Item) -> str:
    return test.nodeid.partition("[")[0]
