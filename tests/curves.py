"""
Draw the first six charts of a run's report.html as one SVG, as the README shows them. It needs Chromium:

    python tests/curves.py out/sudoku_grpo assets/sudoku_grpo.svg
"""
import contextlib
import re
import sys
from pathlib import Path

from browser import Browser

CHARTS, COLUMNS, WIDE, HIGH, GAP, TITLE = 6, 3, 400, 230, 20, 22  # pixels; WIDE and HIGH are those of report.html
READ = """[...document.querySelectorAll("#curves figure")].map(figure => {
    const [title, unit] = [...figure.querySelector("figcaption").childNodes].map(node => node.textContent.trim());
    figure.querySelector("line[x1='-9']").remove();  // the cursor
    return [[title, unit].filter(Boolean).join(", "), figure.querySelector("svg").innerHTML];
})"""
FONT = "system-ui, sans-serif"


def style(page):
    """Take the colours and the lines of charts from a page, in light and in dark -> CSS."""
    colors = re.findall(r":root \{([^}]*)\}", page)
    lines = re.findall(r"\.axis \{.*?\} \.curve \{.*?\} \.band \{.*?\}", page)
    light, dark = (text.replace("color-scheme: light dark;", "") for text in colors)
    return (f":root {{{light}}} @media (prefers-color-scheme: dark) {{ :root {{{dark}}} }} {lines[0]} "
            f"text {{ font: 12px {FONT}; fill: var(--text) }} .tick {{ fill: var(--soft) }} "
            ".page { fill: var(--back) } .title { font-size: 15px; font-weight: 600 }")  # fmt: skip


def picture(charts, page):
    """Put charts [(title, SVG)] into rows of COLUMNS -> SVG."""
    parts = []
    for n, (title, body) in enumerate(charts):
        row, column = divmod(n, COLUMNS)
        x, y = GAP + column * (WIDE + GAP), GAP + row * (HIGH + TITLE + GAP)
        parts.append(f'<g transform="translate({x} {y})"><text class="title" y="14">{title}</text>'
                     f'<g transform="translate(0 {TITLE})">{body}</g></g>')  # fmt: skip
    width = GAP + COLUMNS * (WIDE + GAP)
    height = GAP + -(-len(charts) // COLUMNS) * (HIGH + TITLE + GAP)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="curves of a run"><style>{style(page)}</style><rect class="page" width="100%" height="100%"/>'
            f'{"".join(parts)}</svg>\n')  # fmt: skip


def main(folder, path):
    report = Path(folder) / "report.html"
    with contextlib.closing(Browser()) as browser:
        browser.open(report)
        charts = browser.run(READ)
    Path(path).write_text(picture(charts[:CHARTS], report.read_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])
