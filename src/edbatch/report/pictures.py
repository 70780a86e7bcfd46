"""Pictures of a learned machine: an `Fsm` comes in, the bytes of SVG and PNG files go out.

A machine is a learned policy: it decides what to launch next by a table of states, or by its rule in states that it
does not know. One picture, the curve, shows how good the machine was while it learned, beside its rule without any
states. The other shows what it launches in which state, or the rule if it has no states.
The same machine gives the same bytes: nothing depends on the date, on settings of the user or on earlier drawings.
matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import colorsys
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from edbatch.report.words import MEANING_OF, SEEN_BY, counted, marks_of, rule_lines, shortened, why_no_states
from edbatch.scheduling.fsm import Fsm, MachineState

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN_STATES = 20
SIGN_OF = {"lowers": "↓", "longest": "↔", "most": "▲"}  # signs for the marks of types; matplotlib's own font has them

_DARK, _GREY, _PALE = "#222222", "#707070", "#dddddd"
_TRAINING, _HELD_OUT = "#1f77b4", "#d95f02"

# Sizes in the picture of a machine, in points.
_TEXT, _SMALL, _TITLE = 9.0, 8.0, 11.0
_MARGIN, _ROW, _CHIP, _PAD, _GAP = 14.0, 23.0, 15.0, 6.0, 5.0
_READY, _ARROW, _BAR = 430.0, 34.0, 110.0  # widths: at most, of ready types; of the arrow; of the longest bar


def draw_curve(policy: Fsm, workload: str) -> dict[str, bytes]:
    """`svg` and `png`: batches at each evaluation, and those of the rule without states, over the lower bound."""
    return rendered(lambda: _curve(policy, f"{workload}: batches while learning"))


def draw_machine(policy: Fsm, workload: str) -> dict[str, bytes]:
    """`svg` and `png`: the most visited states, one per line, with what is launched there; or the rule in words."""
    draw = _machine if policy.num_states else _rule
    return rendered(lambda: draw(policy, f"{workload}: what the machine launches"))


def rendered(draw: Callable[[], Figure]) -> dict[str, bytes]:
    with _own_settings():
        figure = draw()
        files = {"svg": BytesIO(), "png": BytesIO()}
        figure.savefig(files["svg"], format="svg", metadata={"Date": None})
        figure.savefig(files["png"], format="png", dpi=150)
    return {name: file.getvalue() for name, file in files.items()}


@contextmanager
def _own_settings() -> Iterator[None]:
    """A scope in which matplotlib has its default settings, not those of the user."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "edbatch"
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a type may have any name
        yield


def _curve(policy: Fsm, title: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator

    training = policy.training
    episodes = [evaluation.episode for evaluation in training.curve]
    figure = Figure(figsize=(7, 4.4), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.09))
    axes = figure.add_subplot()
    lines = [Line("training", _TRAINING, 9, 0, [e.batches for e in training.curve], training.lower_bound)]
    if training.held_out_lower_bound:
        held_out = [e.held_out_batches for e in training.curve]
        lines.append(Line("held out", _HELD_OUT, 13, 5, held_out, training.held_out_lower_bound))
    for line in lines:
        _put_line(axes, line, episodes, training.chosen)
    if training.chosen:
        axes.axvline(episodes[training.chosen], color=_PALE, linewidth=1, zorder=0)
    axes.axhline(1.0, color=_DARK, linewidth=1.8, zorder=1, label="lower bound")
    for _ in range(2):  # a column of the legend has three rows
        axes.plot([], [], linestyle="none", label=" ")
    _fit(axes, max(number / line.bound for line in lines for number in line.batches), episodes[-1])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%.2f×"))
    axes.set_xlabel("episode")
    axes.set_ylabel("batches / lower bound")
    axes.set_title(title, fontsize=_TITLE, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(lines) + 1, frameon=False, fontsize=_SMALL, handlelength=2.6)
    return figure


class Line(NamedTuple):
    """Batches of a group of mini-batches at each evaluation, the first of which is the rule without states. Styles
    differ, so that two lines can be seen even if they coincide."""

    label: str
    colour: str
    ring: float
    dash_offset: float
    batches: list[int]
    bound: int


def _put_line(axes: Axes, line: Line, episodes: list[int], chosen: int) -> None:
    """Draws the evaluations, the rule without states, and a ring around the chosen machine; a legend entry each."""
    multiples = [number / line.bound for number in line.batches]
    said = [f"{counted(n, 'batch', 'batches')}, {m:.2f}×" for n, m in zip(line.batches, multiples, strict=True)]
    look: dict[str, Any] = {"color": line.colour, "markersize": 3.5, "linewidth": 1.4}
    axes.plot(episodes[1:], multiples[1:], "o-", label=line.label, **look)
    look = {"color": line.colour, "linewidth": 0.9, "linestyle": (line.dash_offset, (5, 5)), "zorder": 1.5}
    axes.axhline(multiples[0], label=f"rule alone: {said[0]}", **look)
    look = {"color": line.colour, "markersize": line.ring, "fillstyle": "none", "markeredgewidth": 1.6}
    label = f"chosen: {said[chosen] if chosen else 'the rule alone'}"
    axes.plot([episodes[chosen]], [multiples[chosen]], "o", label=label, **look)


def _fit(axes: Axes, most: float, last_episode: int) -> None:
    """Sets limits with room around the points, even if there is only one, or all are on the lower bound."""
    room = 0.12 * max(most - 1, 0.04)
    axes.set_ylim(1 - room, max(most, 1.04) + room)
    span = max(last_episode, 10)
    axes.set_xlim(-0.03 * span, 1.03 * span)


@dataclass(frozen=True)
class Chip:
    """A label: the name of a type on its colour, or plain words without a colour."""

    text: str
    colour: tuple[float, float, float] | None
    width: float


def _machine(policy: Fsm, title: str) -> Figure:
    """The picture of the states: lines of equal height, columns as wide as their contents."""
    states = policy.states()
    shown, total = states[:SHOWN_STATES], max(1, sum(state.visits for state in states))
    colour_of = dict(zip(policy.types, _colours(len(policy.types)), strict=True))
    ready = [_ready_chips(state, colour_of) for state in shown]
    launched = [_chip(shortened(state.launch), colour_of[state.launch]) for state in shown]
    heads = ("state", "launch", "share of visits")
    ready_width = max([_width(heads[0], _SMALL), *(_row_width(chips) for chips in ready)])
    launch_at = _MARGIN + ready_width + _ARROW
    bar_at = launch_at + max([_width(heads[1], _SMALL), *(chip.width for chip in launched)]) + 14
    below = _notes(policy, states, total)
    widest = max(_width(title, _TITLE, "bold"), *(_width(line, _SMALL) for line in below))
    width = max(bar_at + _BAR + 40, _MARGIN + 1.02 * widest) + _MARGIN
    height = 62 + _ROW * len(shown) + 6 + 14 * len(below) + _MARGIN

    figure, axes = _canvas(width, height, title)
    for x, head in zip((_MARGIN, launch_at, bar_at), heads, strict=True):
        _write(axes, x, 48, head, _SMALL, _GREY)
    most = max([1, *(state.visits for state in shown)])
    for number, state in enumerate(shown):
        y = 62 + _ROW * (number + 0.5)
        axes.plot([_MARGIN, width - _MARGIN], 2 * [y - _ROW / 2], color=_PALE, linewidth=0.6, zorder=0)
        end = _put_chips(axes, _MARGIN, y, ready[number])
        _put_arrow(axes, end, launch_at - _GAP, y)
        _put_chips(axes, launch_at, y, [launched[number]])
        _put_bar(axes, bar_at, y, _BAR * state.visits / most, f"{state.visits / total:.1%}")
    for number, line in enumerate(below):
        _write(axes, _MARGIN, height - _MARGIN - 14 * (len(below) - number - 0.5), line, _SMALL, _GREY)
    return figure


def _rule(policy: Fsm, title: str) -> Figure:
    """The picture of a machine without states: lines of text."""
    lines = [why_no_states(policy), "", *rule_lines(policy.crowd)]
    width = 1.02 * max(_width(title, _TITLE, "bold"), *(_width(line, _TEXT) for line in lines)) + 2 * _MARGIN
    figure, axes = _canvas(width, 40 + 16 * len(lines) + _MARGIN, title)
    for number, line in enumerate(lines):
        _write(axes, _MARGIN, 40 + 16 * (number + 0.5), line, _TEXT)
    return figure


def _canvas(width: float, height: float, title: str) -> tuple[Figure, Axes]:
    """A figure of this size with a title, and axes in points from its upper left corner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis("off")
    _write(axes, _MARGIN, 20, title, _TITLE, weight="bold")
    return figure, axes


def _notes(policy: Fsm, states: list[MachineState], total: int) -> list[str]:
    """The text below the states: how many more there are, and what the marks mean."""
    lines = []
    rest = states[SHOWN_STATES:]
    if rest:
        share = sum(state.visits for state in rest) / total
        lines.append(f"… and {counted(len(rest), 'more state')}, {share:.1%} of the visits")
    size = f"{counted(len(states), 'state')} over {counted(len(policy.types), 'type')}"
    lines.append(f"{size}. A state is {SEEN_BY[policy.encoding]}.")
    lines.append(f"In a state that it does not know the rule decides, with crowd {policy.crowd:g}.")
    return lines + [f"{SIGN_OF[mark]}  {mark}: {MEANING_OF[mark]}" for mark in marks_of(policy.encoding)]


def _ready_chips(state: MachineState, colour_of: dict[Hashable, Any]) -> list[Chip]:
    """As many chips as there is room for, and how many more there are."""
    chips: list[Chip] = []
    for number, (name, mark) in enumerate(state.ready):
        signs = "".join(SIGN_OF[word] for word in mark.split())
        chip = _chip(f"{shortened(name)} {signs}".rstrip(), colour_of[name])
        more = _chip(f"+ {len(state.ready) - number} more", None)
        if number and _row_width([*chips, chip, more]) > _READY:
            return [*chips, more]
        chips.append(chip)
    return chips or [_chip("none", None)]


def _chip(text: str, colour: tuple[float, float, float] | None) -> Chip:
    return Chip(text, colour, _width(text, _TEXT) + 2 * _PAD)


def _row_width(chips: Sequence[Chip]) -> float:
    return sum(chip.width for chip in chips) + _GAP * (len(chips) - 1)


def _width(text: str, size: float, weight: str = "normal") -> float:
    """The width of a line of text, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight=weight)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def _colours(count: int) -> list[tuple[float, float, float]]:
    """Colours that are light enough for dark text; neighbours differ in hue (by the golden section) and lightness."""
    return [colorsys.hls_to_rgb((0.58 + 0.618034 * i) % 1, (0.80, 0.73)[i % 2], 0.65) for i in range(count)]


def _write(axes: Axes, x: float, y: float, text: str, size: float, colour: str = _DARK, **more: Any) -> None:
    axes.text(x, y, text, fontsize=size, color=colour, va="center_baseline", parse_math=False, **more)


def _put_chips(axes: Axes, x: float, y: float, chips: Sequence[Chip]) -> float:
    """Draws chips from x on and returns where the last one ends."""
    from matplotlib.patches import FancyBboxPatch

    for chip in chips:
        if chip.colour is not None:
            shape = f"round,pad=0,rounding_size={_CHIP / 2}"
            corner = (x, y - _CHIP / 2)
            axes.add_patch(FancyBboxPatch(corner, chip.width, _CHIP, shape, facecolor=chip.colour, edgecolor="none"))
        _write(axes, x + _PAD, y, chip.text, _TEXT)
        x += chip.width + _GAP
    return x


def _put_arrow(axes: Axes, start: float, end: float, y: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    arrow = FancyArrowPatch((start, y), (end, y), arrowstyle="-|>", mutation_scale=8, shrinkA=0, shrinkB=0, lw=0.8)
    arrow.set_color(_GREY)
    axes.add_patch(arrow)


def _put_bar(axes: Axes, x: float, y: float, length: float, label: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y - 4), max(length, 0.5), 8, facecolor=_GREY, edgecolor="none"))
    _write(axes, x + length + 5, y, label, _SMALL)
