"""Matplotlib drawings as inline SVG, with text as text in the colour of the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from vocabench.harness.installing import pip_install
from vocabench.impls.errors import BadInput

_INK = "#010203"  # replaced by the text colour of the page
_WIDTH, _HEIGHT = 5.0, 3.3  # inches; narrow, so that 9 pt is legible on a phone
_LEGEND_LINE = 0.17  # inches
_LONGEST = 44  # characters of a name in a drawing

# The palette of Okabe and Ito for colour-blind readers without its yellow and black, and four more colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#17a2a2", "#9467bd", "#637939")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")

Axes = Any  # matplotlib's type; matplotlib is imported only for drawing


def matplotlib() -> Any:
    """Return the matplotlib module, with a backend that needs no screen.

    Raises:
        BadInput: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BadInput(f"plots need matplotlib: install it with '{pip_install('matplotlib')}'") from error
    matplotlib.use("agg")
    return matplotlib


def drawn(draw: Callable[[Axes], None], *, name: str, title: str, description: str, height: float = _HEIGHT) -> str:
    """Return an <svg> element.

    Args:
        draw: Draws on the given axes, with text in the default colour.
        name: Name of the drawing, unique in the page, from which its ids are derived.
        title, description: Texts for screen readers.
        height: Height in inches.
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
                text.set_parse_math(False)  # a name may contain a dollar sign
            buffer = io.StringIO()
            figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(figure)
    return _embedded(buffer.getvalue(), name, title, description)


def _embedded(svg: str, name: str, title: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\s+id="[A-Za-z0-9.]+_\d+(_\d+)?"', "", svg)  # ids such as "axes_1" would repeat
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    head = (
        f'<svg viewBox="{box.group(1)}" role="img" aria-labelledby="{name}-title {name}-text" class="drawing">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(description)}</desc>'
    )
    return (head + svg[svg.index(">") + 1 :]).replace(_INK, "currentColor").replace("xlink:href", "href")


def style(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return a colour and a marker for each name, in order; after ten names, colours repeat with other markers."""
    return {
        name: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]}
        for i, name in enumerate(dict.fromkeys(names))
    }


def short(name: str) -> str:
    """Return a name shortened for a drawing; tables show it in full."""
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def legend(axes: Axes) -> None:
    """Add a legend below the axes, and enlarge the drawing by its height."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        widest = max(map(len, labels))
        columns = 3 if widest < 20 else 2 if widest < 34 else 1
        lines = -(-len(labels) // columns)
        axes.figure.set_figheight(axes.figure.get_figheight() + _LEGEND_LINE * lines)
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def logarithmic(axis: Any) -> None:
    """Make an axis logarithmic, with labels at 1, 2 and 5 times the powers of ten."""
    from matplotlib import ticker

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(thousands)
    axis.set_minor_formatter(ticker.NullFormatter())


def thousands(value: float, _position: int | None = None) -> str:
    """Return a number with a suffix: 10000 as 10k, 1000000 as 1M."""
    for scale, unit in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:g}{unit}"
    return f"{value:g}"
