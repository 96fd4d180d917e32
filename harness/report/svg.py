"""Drawings by matplotlib as SVG that lies in a page: its text is text, in the page's own colour, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from vocabench.impls.errors import BadInput

_INK = "#010203"  # stands for the page's text colour until the drawing is a part of it
_WIDTH, _HEIGHT = 5.0, 3.3  # inches; narrow, so that 9 pt can be read on a phone
_LEGEND_LINE = 0.17
_LONGEST = 44  # letters of a name in a drawing

# Okabe and Ito's palette, which colour-blind readers tell apart, less its yellow and black; then four more.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#17a2a2", "#9467bd", "#637939")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")

Axes = Any  # matplotlib's, which is imported only when something is drawn


def matplotlib() -> Any:
    """The library, drawing without a screen.

    Raises:
        BadInput: It is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput("plots need matplotlib: install it with 'pip install -c constraints.txt matplotlib'") from error
    matplotlib.use("agg")
    return matplotlib


def drawn(draw: Callable[[Axes], None], *, name: str, title: str, description: str, height: float = _HEIGHT) -> str:
    """An <svg> element that `draw` has filled.

    Args:
        draw: Draws on the axes it is given, text in the default colour.
        name: Of the drawing, different for each of a page: the same rows give the same ids, and no two drawings share
            one.
        title, description: What a screen reader says.
        height: In inches.
    """
    library = matplotlib()
    from matplotlib import pyplot

    settings = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "text.color": _INK,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": "#8888",
        "grid.linewidth": 0.5,
    }
    with library.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")
        try:
            draw(axes)
            for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
                text.set_parse_math(False)  # a dollar sign in a name is a dollar sign
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(figure)
    return _embedded(buffer.getvalue(), name, title, description)


def _embedded(svg: str, name: str, title: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s+id="[A-Za-z0-9.]+_\d+(_\d+)?"', "", svg)  # "axes_1" would be there once a drawing
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    head = (
        f'<svg viewBox="{box.group(1)}" role="img" aria-labelledby="{name}-title {name}-text" class="drawing">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(description)}</desc>'
    )
    return (head + svg[svg.index(">") + 1 :]).replace(_INK, "currentColor").replace("xlink:href", "href")


def style(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """A colour and a marker for each name, in order; beyond ten, colours come again with other markers."""
    return {
        name: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]}
        for i, name in enumerate(dict.fromkeys(names))
    }


def short(name: str) -> str:
    """A name that leaves room for the drawing; tables have it whole."""
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def legend(axes: Axes) -> None:
    """Below the axes, where it hides nothing; the drawing grows by it."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        widest = max(map(len, labels))
        columns = 3 if widest < 20 else 2 if widest < 34 else 1
        lines = -(-len(labels) // columns)
        axes.figure.set_figheight(axes.figure.get_figheight() + _LEGEND_LINE * lines)
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def logarithmic(axis: Any) -> None:
    """An axis with plain numbers at 1, 2 and 5 times the powers of ten."""
    from matplotlib import ticker

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(thousands)
    axis.set_minor_formatter(ticker.NullFormatter())


def thousands(value: float, _position: int | None = None) -> str:
    """10000 as 10k, 1000000 as 1M."""
    for scale, unit in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"
