"""Line charts as SVG, for the documents."""
import math
from pathlib import Path

COLOURS = ["#c03030", "#2050b0", "#208040", "#b07000", "#703090", "#108080", "#606060", "#d05090", "#506010"]
WIDTH, HEIGHT, LEFT, TOP = 640, 300, 64, 34


def chart(title, series, below, log=False):
    """One panel: `series` is {name: [(x, y), ...]}; names are listed at the right. Returns SVG elements and a height."""
    def lift(y):
        return math.log10(y) if log else y

    points = [p for line in series.values() for p in line]
    low, high = min(lift(y) for _, y in points), max(lift(y) for _, y in points)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    margin = 0.05 * (high - low) or 1
    low, high = low - margin, high + margin

    def place(x, y):
        return (LEFT + WIDTH * (x - first) / max(1e-9, last - first), TOP + HEIGHT * (1 - (lift(y) - low) / (high - low)))

    parts = [f'<text x="{LEFT}" y="{TOP - 12}" font-size="14">{title}</text>',
             f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    for part in (0, 0.25, 0.5, 0.75, 1):
        value = low + (high - low) * part
        text = f"{10 ** value:.1e}" if log else f"{value:.3g}"
        parts.append(f'<text x="{LEFT - 6}" y="{TOP + HEIGHT * (1 - part) + 4:.1f}" text-anchor="end" font-size="11">{text}</text>')
    for part in (0, 0.5, 1):
        x = first + (last - first) * part
        parts.append(f'<text x="{LEFT + WIDTH * part:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle" font-size="11">{x:g}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 32}" text-anchor="middle" font-size="12">{below}</text>')
    for row, (name, line) in enumerate(series.items()):
        colour = COLOURS[row % len(COLOURS)]
        where = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in line))
        parts.append(f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        y = TOP + 14 + 17 * row
        parts.append(f'<path d="M{LEFT + WIDTH + 12} {y - 4} h22" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + WIDTH + 40}" y="{y}" font-size="12">{name}</text>')
    return parts, TOP + HEIGHT + 44


def write(file, panels):
    """Panels, as `chart` makes them, one below the other."""
    width, at, parts = LEFT + WIDTH + 230, 0, []
    for elements, height in panels:
        parts.append(f'<g transform="translate(0,{at})">' + "\n".join(elements) + "</g>")
        at += height
    Path(file).write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{at}" viewBox="0 0 {width} {at}" '
                          f'font-family="sans-serif">\n<rect width="{width}" height="{at}" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")
