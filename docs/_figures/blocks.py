"""Parts of a page that are made from rows.

A page names what it shows in comments, which readers of the page do not see:

    <!-- table                                     a table, as `tables.table` describes it, in TOML
    rows = "cpu-epyc"
    ...
    -->
    | words | framework | ...
    <!-- end -->

    <!-- figures                                   names for selections of a row, in TOML
    [sohsm]
    rows = "cpu-epyc"
    method = "sohsm"
    -->
    It is <!-- = sohsm layer_seconds ratio -->24.6x [24.2, 24.9]<!-- end --> as fast.

Other comments than "table" make tables of results files ("files"), of quantities ("quantities"), of settings of tasks
("settings") and of tolerances ("tolerances").

The text between a comment and its end is replaced; the rest of a page is left as it is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from docs._figures import definitions, files, tables
from docs._figures.published import NotFound, Published, Selection
from docs._figures.show import show

BEGIN = "<!-- "
_END = "<!-- end -->"
_NAMES = re.compile(r"<!-- figures\n(.*?)-->", re.DOTALL)
_MAKERS: Mapping[str, Callable[[Mapping[str, Any], Published], str]] = {
    "table": tables.table,
    "files": files.table,
    "quantities": lambda content, _: definitions.quantities(content),
    "settings": lambda content, _: definitions.settings(content),
    "tolerances": lambda content, _: definitions.tolerance_reasons(content),
}
_TABLE = re.compile(rf"(<!-- ({'|'.join(_MAKERS)})\n(.*?)-->\n)(.*?)({_END})", re.DOTALL)
_INLINE = re.compile(rf"(<!-- = ([^>]*?) -->)(.*?)({_END})", re.DOTALL)


class WrongBlock(ValueError):
    """A block cannot be made: the page and the reason."""


def updated(text: str, published: Published, page: str) -> str:
    """Return a page with all of its blocks made anew."""
    try:
        names: dict[str, Selection] = {}
        for toml in _NAMES.findall(text):
            names |= _toml(toml)
        text = _TABLE.sub(lambda found: f"{found[1]}{_MAKERS[found[2]](_toml(found[3]), published)}\n{found[5]}", text)
        text = _INLINE.sub(lambda found: f"{found[1]}{_inline(found[2], names, published)}{found[4]}", text)
    except (NotFound, tomllib.TOMLDecodeError) as error:
        raise WrongBlock(f"{page}: {error}") from error
    begun = sum(text.count(f"<!-- {name}\n") for name in _MAKERS) + text.count("<!-- = ")
    if (ends := text.count(_END)) != begun:
        raise WrongBlock(f"{page}: {ends} ends of {begun} blocks: allowed: one end for each block")
    return text


def _toml(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def _inline(text: str, names: dict[str, Selection], published: Published) -> str:
    """Return the figure that a comment "= NAME QUANTITY FORMAT" stands for."""
    try:
        name, quantity, form = text.split()
    except ValueError:
        raise NotFound(f"'= {text}': allowed: = NAME QUANTITY FORMAT") from None
    if name not in names:
        raise NotFound(f"unknown figures {name!r}: allowed: {', '.join(names)}")
    return show(form, {**names[name], "quantity": quantity}, published)
