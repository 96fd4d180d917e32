"""Tables of what rows can hold and how it is measured: quantities, settings of tasks, and tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs._figures.published import NotFound
from docs._figures.tables import markdown
from vocabench.harness import registry
from vocabench.harness.measure import tolerances
from vocabench.harness.quantities import NOT_JUDGED, QUANTITIES
from vocabench.harness.run.settings import Setting


def quantities(content: Mapping[str, Any]) -> str:
    """Return a table of the quantities `names`, in this order."""
    body = []
    for name in content["names"]:
        if name not in QUANTITIES:
            raise NotFound(f"unknown quantity {name!r}: allowed: {', '.join(QUANTITIES)}")
        unit, better, meaning = QUANTITIES[name]
        body.append([f"`{name}`", "" if unit == "1" else unit, "" if name in NOT_JUDGED else better, _escaped(meaning)])
    return markdown(["quantity", "unit", "better", "meaning"], [False] * 4, body)


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is, such as <unk>."""
    return text.replace("<", "&lt;")


def settings(content: Mapping[str, Any]) -> str:
    """Return a table of the settings `names` of the tasks `tasks`, with a column of defaults for each task.

    Their meaning is that in the first task that has the setting.
    """
    tasks, names = content["tasks"], content["names"]
    of_tasks = {task: registry.task(task).settings for task in tasks}
    body = []
    for name in names:
        having = [of_tasks[task][name] for task in tasks if name in of_tasks[task]]
        if not having:
            raise NotFound(f"unknown setting {name!r} of {', '.join(tasks)}")
        body.append([f"`{name}`", *(_default(of_tasks[task].get(name)) for task in tasks), having[0].help])
    titles = ["default"] if len(tasks) == 1 else [f"`{task}`" for task in tasks]
    return markdown(["setting", *titles, "meaning"], [False, *[True] * len(tasks), False], body)


def _default(setting: Setting | None) -> str:
    if setting is None:
        return ""
    default: Any = setting.default
    return f"{default:g}" if isinstance(default, float) else str(default)


def tolerance_reasons(content: Mapping[str, Any]) -> str:
    """Return a table of the tolerances' "units", "factors" or "flips", as `show` says, with the reason of each."""
    shown = {
        "units": ("precision", "unit", tolerances.UNITS),
        "factors": ("quantity", "factor", tolerances.FACTORS),
        "flips": ("precision", "share", tolerances.FLIPS),
    }
    if content["show"] not in shown:
        raise NotFound(f"unknown tolerances {content['show']!r}: allowed: {', '.join(shown)}")
    first, second, entries = shown[content["show"]]
    body = [[f"`{name}`", f"{entry.value:.5g}", entry.reason] for name, entry in entries.items()]
    return markdown([first, second, "reason"], [False, True, False], body)
