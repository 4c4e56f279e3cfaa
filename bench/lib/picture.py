"""A picture of ratios with their intervals, as SVG for light and dark pages."""

from html import escape

LABELS, RIGHT, TOP, ROW, BOTTOM = 392, 16, 46, 24, 44
SCALE = 340  # of the whole axis
STYLE = """\
    text { font: 13px sans-serif; fill: #1f2328; }
    .small { font-size: 11px; fill: #57606a; }
    .grid { stroke: #d0d7de; }
    .one { stroke: #57606a; stroke-width: 1.5; }
    .control { stroke: #c2c9d1; stroke-width: 11; }
    .better { stroke: #1a7f37; fill: #1a7f37; }
    .worse { stroke: #cf222e; fill: #cf222e; }
    .same { stroke: #57606a; fill: #57606a; }
    .ratio { stroke-width: 3; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .small { fill: #9198a1; }
      .grid { stroke: #3d444d; }
      .one { stroke: #9198a1; }
      .control { stroke: #4b535d; }
      .better { stroke: #56d364; fill: #56d364; }
      .worse { stroke: #ff7b72; fill: #ff7b72; }
      .same { stroke: #b1bac4; fill: #b1bac4; }
    }"""


def intervals(title, description, rows, ticks):
    """Rows are (label, class, median, interval, the control's interval); ticks are the numbers on the axis."""
    low, high = ticks[0], ticks[-1]
    width, height = LABELS + SCALE + RIGHT, TOP + ROW * len(rows) + BOTTOM
    bottom = TOP + ROW * len(rows)

    def at(ratio):
        return round(LABELS + SCALE * (min(max(ratio, low), high) - low) / (high - low), 1)

    def line(kind, x, until, y):
        return f'  <line class="{kind}" x1="{x}" x2="{until}" y1="{y}" y2="{y}"/>'

    def legend(x, kind, words):
        return [line(kind, x, x + 26, 18), f'  <text x="{x + 34}" y="22">{words}</text>']

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
             'aria-labelledby="title desc">',
             f'  <title id="title">{escape(title)}</title>', f'  <desc id="desc">{escape(description)}</desc>', "  <style>", STYLE, "  </style>",
             *legend(8, "better ratio", "faster"), *legend(104, "same ratio", "no difference seen"), *legend(274, "worse ratio", "slower"),
             *legend(374, "control", "control: plain ÷ plain")]
    for tick in ticks:
        lines += [f'  <line class="{"one" if tick == 1 else "grid"}" x1="{at(tick)}" x2="{at(tick)}" y1="{TOP - 10}" y2="{bottom}"/>',
                  f'  <text class="small" x="{at(tick)}" y="{bottom + 16}" text-anchor="middle">×{tick:.1f}</text>']
    lines.append(f'  <text class="small" x="{LABELS + SCALE // 2}" y="{bottom + 34}" text-anchor="middle">work per second of processor time (starts: of time), '
                 'huge pages ÷ plain; 95 % intervals</text>')
    for number, (label, kind, median, interval, control) in enumerate(rows):
        y = TOP + ROW * number + ROW // 2 - 5
        lines += [f'  <text x="8" y="{y + 4}">{escape(label)}</text>', line("control", *map(at, control), y),
                  line(f"{kind} ratio", *map(at, interval), y),
                  f'  <circle class="{kind}" cx="{at(median)}" cy="{y}" r="4"/>']
    return "\n".join([*lines, "</svg>"]) + "\n"
