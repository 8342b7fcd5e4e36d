"""One self-contained HTML page per run: facts, curves, metrics, pictures, options, problems."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
Pictures = Sequence[tuple[str, bytes]]

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --ground: #fbfbf9; --card: #ffffff; --text: #1d2329; --soft: #5d6873; --line: #e1e4e6; --accent: #0072b2;
        --warn: #fff4e0; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14181b; --card: #1d2226; --text: #e6e9eb; --soft: #9aa5ae; --line: #343b41; --accent: #56b4e9;
          --warn: #3a2f1a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 74rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--text);
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0 0 1rem; font-size: 1.7rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 .8rem; padding-bottom: .3rem; border-bottom: 2px solid var(--line); font-size: 1.15rem; }
dl.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .7rem; margin: 0; }
dl.facts div { padding: .55rem .8rem; background: var(--card); border: 1px solid var(--line); border-radius: .5rem; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.problems { padding: .7rem 1rem .7rem 2rem; margin: 0; background: var(--warn); border-radius: .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; background: var(--card); font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .9rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-size: .85rem; font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
tbody tr:last-child { font-weight: 700; }
figure { margin: 0 0 1.2rem; }
figure img { display: block; max-width: 100%; height: auto; padding: .4rem; background: #ffffff;
             border: 1px solid var(--line); border-radius: .5rem; }
figcaption { margin-top: .3rem; color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
details { margin-top: 2.4rem; }
summary { cursor: pointer; color: var(--accent); font-weight: 600; }
details td { white-space: normal; text-align: left; overflow-wrap: anywhere; }
code { font-family: ui-monospace, Consolas, monospace; font-size: .9em; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% if facts %}<dl class="facts">
{% for name, value in facts.items() %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}</dl>{% endif %}
{% if problems %}<h2>What to know</h2>
<ul class="problems">{% for problem in problems %}<li>{{ problem }}</li>{% endfor %}</ul>{% endif %}
{% if curves %}<h2>Training</h2>
<figure><img alt="loss, learning rate and metrics over the steps" src="{{ curves }}"></figure>{% endif %}
{% if header %}<h2>{{ table_title }}</h2>
<div class="wide"><table>
<thead><tr>{% for cell in header %}<th>{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table></div>{% endif %}
{% if pictures %}<h2>Pictures</h2>
{% for caption, source in pictures %}<figure>
<img alt="{{ caption }}" src="{{ source }}"><figcaption>{{ caption }}</figcaption></figure>
{% endfor %}{% endif %}
{% if options %}<details><summary>Options of the run</summary>
<div class="wide"><table><tbody>{% for name, value in options.items() %}<tr>
<td><code>{{ name }}</code></td><td>{{ value }}</td></tr>
{% endfor %}</tbody></table></div></details>{% endif %}
</body>
</html>
"""


def write_report(
    path: str | os.PathLike,
    *,
    title: str,
    facts: Mapping[str, object],
    curves: bytes | None = None,
    table: Table | None = None,
    table_title: str = "Validation",
    pictures: Pictures = (),
    options: Mapping[str, object] | None = None,
    problems: Sequence[str] = (),
) -> Path:
    """Write a page that needs no other file: pictures are in it, nothing is loaded from elsewhere.

    The page appears whole or not at all; an older one is replaced.

    Args:
        path: of the HTML file; its folder exists.
        title: of the page.
        facts: short values to show first, such as model, data, steps, best metric.
        curves: PNG of the training curves.
        table: header and rows; the last row is the summary.
        table_title: the heading above it.
        pictures: (caption, PNG) in the order to show.
        options: of the run.
        problems: sentences on what was dropped or odd.

    Returns:
        The path written.
    """
    import jinja2

    header, rows = table if table is not None else ((), ())
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    text = environment.from_string(_TEMPLATE).render(
        title=title,
        facts=dict(facts),
        curves=_data_uri(curves) if curves else None,
        header=header,
        rows=rows,
        table_title=table_title,
        pictures=[(caption, _data_uri(png)) for caption, png in pictures],
        options=dict(options or {}),
        problems=list(problems),
    )
    path = Path(path)
    write_atomically(path, text)
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is either the old or the new one, never a part."""
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def report_run(
    folder: str | os.PathLike,
    *,
    title: str,
    facts: Mapping[str, object],
    monitor: str | None = None,
    table: Table | None = None,
    pictures: Pictures = (),
    options: Mapping[str, object] | None = None,
    problems: Sequence[str] = (),
) -> Path:
    """Write report.html of a run folder, with curves drawn from its history.jsonl; see `write_report`."""
    from accel_geo.report.pictures import curves, to_png

    history = read_history(Path(folder) / "history.jsonl")
    return write_report(
        Path(folder) / "report.html",
        title=title,
        facts=facts,
        curves=to_png(curves(history, monitor)) if history else None,
        table=table,
        pictures=pictures,
        options=options,
        problems=problems,
    )


def read_history(path: str | os.PathLike) -> list[dict]:
    """Return the lines of a history.jsonl; a last line cut short by a crash is left out, a missing file is empty.

    Raises:
        ValueError: a line before the last is no JSON.
    """
    path = Path(path)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    history = []
    for number, line in enumerate(lines, start=1):
        try:
            history.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is no JSON ({error}); restore or remove the file") from None
    return history


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
