"""Charts: one bar for each peer, as SVG that can be read on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from xml.sax.saxutils import escape

from benchmarks.samples import Spread

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 190, 130, 26, 52

#: A bar is cut, and says so, if it is so many times longer than the middle one: the others would become too short.
CUT = 5.0

_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.soft { fill: #59636e; font-size: 12px; }
.bar { fill: #8c959f; }
.ours { fill: #0969da; }
.bold { font-weight: 600; }
.spread { stroke: #1f2328; stroke-width: 1.5; }
.cut { stroke: #ffffff; stroke-width: 3; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; }
  .soft { fill: #9198a1; }
  .bar { fill: #656c76; }
  .ours { fill: #4493f8; }
  .spread { stroke: #f0f6fc; }
  .cut { stroke: #0d1117; }
}
""".strip()


@dataclass(frozen=True)
class Bar:
    name: str
    spread: Spread
    is_ours: bool


def draw(title: str, note: str, bars: Sequence[Bar], digits: int) -> str:
    """
    Parameters:
        note: says which end is the better one.
    """
    middles = [max(0.0, bar.spread.middle) for bar in bars]
    longest = min(max(middles), CUT * median(middles)) if median(middles) else max(middles)
    # The spread of a bar needs room, too, unless the bar is cut.
    ends = [bar.spread.most for bar in bars if bar.spread.middle <= longest]
    longest = max([longest, *(end for end in ends if end <= 2 * longest)])
    scale = (WIDTH - LEFT - RIGHT) / (longest or 1.0)
    height = TOP + ROW * len(bars) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="10" y="22">{escape(title)}</text>',
        f'<text class="soft" x="10" y="40">{escape(note)}</text>',
    ]
    for number, bar in enumerate(bars):
        lines += _bar(bar, TOP + ROW * number, scale, longest, digits)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bar(bar: Bar, top: float, scale: float, longest: float, digits: int) -> list[str]:
    spread = bar.spread
    is_cut = spread.middle > longest
    end = LEFT + max(1.0, scale * min(max(0.0, spread.middle), longest))
    weight = ' class="bold"' if bar.is_ours else ""
    lines = [
        f'<text{weight} x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect class="{"ours" if bar.is_ours else "bar"}" x="{LEFT}" y="{top + 3}" width="{end - LEFT:.1f}" '
        f'height="{ROW - 10}" rx="2"/>',
    ]
    label = end
    if is_cut:
        lines.append(f'<path class="cut" d="M{end - 22:.1f} {top + 22} l8 -22 m6 22 l8 -22"/>')
    elif spread.rounds > 1:
        least, most = (LEFT + scale * min(max(0.0, value), longest) for value in (spread.least, spread.most))
        label = max(end, most)
        middle = top + 3 + (ROW - 10) / 2
        lines.append(
            f'<path class="spread" fill="none" d="M{least:.1f} {middle} H{most:.1f} M{least:.1f} {middle - 4} v8 '
            f'M{most:.1f} {middle - 4} v8"/>'
        )
    return [*lines, f'<text{weight} x="{label + 7:.1f}" y="{top + 15}">{spread.middle:,.{digits}f}</text>']
