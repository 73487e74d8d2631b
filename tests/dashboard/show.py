"""The dashboard over a played hour.

show.py openmetrics           pages of /metrics (standard input) as one text with moments, for promtool
show.py ask ADDRESS PAGES     what each panel asks, asked of the Prometheus there; fails where an answer is missing
show.py page THEME UPLOT      these answers (standard input) in the dashboard's layout, drawn by uPlot
"""

import html
import json
import re
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/dashboards/ebbtide.json").read_text())

# Seconds from one page to the next, and Grafana's $__rate_interval for it: four times that.
EVERY = 15
RATE = "1m"

# Panels whose metrics the played world has no use for: it has no certificates, and all launches work.
SILENT = {"First certificate expires in", "Clients refused", "Launches that failed, by group"}

# How much of the dashboard the picture shows, in units of its grid: now, scale-ins, hooks and notices.
ROWS = 39

# Grafana's classic palette.
COLOURS = ["#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#37872d", "#fa6400", "#a352cc"]


def openmetrics(pages):
    """One text: each family's samples with their moments, under one heading."""
    families, order, at = {}, [], None
    for line in pages:
        line = line.rstrip("\n")
        if line.startswith("# at "):
            at = line.split()[2]
        elif match := re.match(r"# (HELP|TYPE|UNIT) (\S+)", line):
            family = match[2]
            if family not in families:
                families[family] = ({}, [])
                order.append(family)
            families[family][0].setdefault(match[1], line)
        elif line and line != "# EOF":
            sample = re.match(r"([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)$", line)
            labels = ",".join(part for part in ('job="ebbtide",instance="ebbtide-0"', sample[2]) if part)
            families[family][1].append(f"{sample[1]}{{{labels}}} {sample[3]} {at}")
    for family in order:
        headings, samples = families[family]
        # promtool's reader knows no info families: theirs are gauges to it.
        info = headings["TYPE"].endswith(" info")
        if not info:
            yield from headings.values()
        yield from samples
    yield "# EOF"


def moments(pages):
    return [int(line.split()[2]) for line in pages if line.startswith("# at ")]


def query(address, path, **given):
    with urllib.request.urlopen(f"{address}/api/v1/{path}?{urllib.parse.urlencode(given)}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def ready(address):
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"{address}/-/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("Prometheus did not come up")


def legend(target, labels):
    named = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), target.get("legendFormat") or "")
    return named or ", ".join(value for key, value in labels.items() if key != "__name__")


def ask(address, pages):
    """Each panel with its answers: a list of series, each with a name, moments and values."""
    ready(address)
    found = moments(Path(pages).open())
    begin, end = found[0], found[-1]
    answers, silent = [], set()
    for panel in DASHBOARD["panels"]:
        series = []
        for target in panel.get("targets", []):
            asked = target["expr"].replace("$__rate_interval", RATE).replace("$job", ".*")
            if target.get("instant"):
                result = query(address, "query", query=asked, time=end)
                result = [{"metric": one["metric"], "values": [one["value"]]} for one in result]
            else:
                result = query(address, "query_range", query=asked, start=begin, end=end, step=EVERY)
            for one in result:
                values = {int(float(at)): None if value == "NaN" else float(value) for at, value in one["values"]}
                if any(value is not None for value in values.values()):
                    series.append({"name": legend(target, one["metric"]), "values": values})
        if panel.get("targets") and not series:
            silent.add(panel["title"])
        answers.append({"panel": panel, "series": series})
    if silent != SILENT:
        raise SystemExit(f"panels without an answer: {sorted(silent)}; expected {sorted(SILENT)}")
    return {"begin": begin, "end": end, "answers": answers}


def amount(value, unit):
    """A figure as a panel shows it."""
    if unit == "s":
        for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
            if abs(value) >= size:
                return f"{value / size:.3g} {name}"
        return f"{value:.3g} s" if abs(value) >= 1 or value == 0 else f"{value * 1000:.3g} ms"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return f"{value:.3g}" + (" req/s" if unit == "reqps" else "")


def stat(panel, series):
    unit = panel["fieldConfig"]["defaults"].get("unit")
    figures = [(one["name"], list(one["values"].values())[-1]) for one in series]
    if panel["title"] == "Version":
        words = ", ".join(name for name, _ in figures)
    else:
        words = ", ".join(amount(value, unit) for _, value in figures) or "No data"
    return f'<div class="figure">{html.escape(words)}</div>'


PAGE = """<!doctype html><html class="{theme}"><meta charset="utf-8"><title>ebbtide</title><style>{css}
html {{ --ground: #f4f5f5; --panel: #ffffff; --line: #e0e1e3; --text: #24292e; --quiet: #6e7680; --figure: #299c46 }}
html.dark {{ --ground: #111217; --panel: #181b1f; --line: #2c3036; --text: #ccccdc; --quiet: #9fa7b3; --figure: #73bf69 }}
body {{ margin: 0; background: var(--ground); color: var(--text); font: 13px Inter, 'Helvetica Neue', Arial, sans-serif }}
section {{ position: absolute; box-sizing: border-box; background: var(--panel); border: 1px solid var(--line); border-radius: 2px; overflow: hidden }}
section.row {{ background: none; border: none; font-size: 15px; padding: 6px 4px }}
h2 {{ font-size: 13px; font-weight: 500; margin: 7px 8px 2px }}
.figure {{ font-size: 32px; font-weight: 500; text-align: center; color: var(--figure); padding-top: 22px }}
.names {{ margin: 0 8px; font-size: 11px; color: var(--quiet); line-height: 16px; height: 34px; overflow: hidden }}
.names i {{ display: inline-block; width: 12px; height: 3px; margin: 0 4px 3px 8px }}
.none {{ text-align: center; color: var(--quiet); padding-top: 90px }}
</style><body>{sections}<script>{script}</script><script>
const colours = {colours};
const style = getComputedStyle(document.documentElement), quiet = style.getPropertyValue("--quiet"), line = style.getPropertyValue("--line");
const short = value => +value.toPrecision(3);
const steps = [0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600];
const shown = {{
  s: value => Math.abs(value) >= 60 ? short(value / 60) + " min" : Math.abs(value) >= 1 || value === 0 ? short(value) + " s" : short(value * 1000) + " ms",
  percentunit: value => short(value * 100) + " %", reqps: value => short(value) + "/s", short,
}};
for (const [id, given] of Object.entries({charts})) {{
  const place = document.getElementById(id), axis = {{ stroke: quiet, grid: {{ stroke: line, width: 1 }}, ticks: {{ show: false }}, font: "11px Arial" }};
  const rows = given.series.map(one => one.values);
  const drawn = rows.map(row => row.slice()), bands = [];
  if (given.stacked) for (let n = 0; n < drawn.length; n++) {{
    drawn[n] = drawn[n].map((value, at) => (value ?? 0) + (n ? drawn[n - 1][at] : 0));
    if (n) bands.push({{ series: [n + 1, n] }});
  }}
  new uPlot({{
    width: place.clientWidth - 12, height: given.height, legend: {{ show: false }}, cursor: {{ show: false }}, bands,
    tzDate: at => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    scales: {{ y: {{ range: (chart, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, given.most) * 1.05] }} }},
    axes: [{{ ...axis, space: 70, size: 28, values: (chart, ticks) => ticks.map(at => new Date(at * 1000).toISOString().slice(11, 16)) }},
           {{ ...axis, size: 56, space: 35, ...(given.unit === "s" ? {{ incrs: steps }} : {{}}), values: (chart, ticks) => ticks.map(shown[given.unit] ?? shown.short) }}],
    series: [{{}}, ...given.series.map((one, n) => ({{
      label: one.name, stroke: colours[n % colours.length], width: 1.2, points: {{ show: false }}, spanGaps: false,
      fill: given.fill ? colours[n % colours.length] + given.fill : undefined,
      paths: given.bars ? uPlot.paths.bars({{ size: [0.9] }}) : undefined,
    }}))],
  }}, [given.at, ...drawn], place);
}}
</script>
"""


def page(theme, uplot, asked):
    """The answers in the dashboard's layout."""
    cell, width = 38, 1400 / 24
    at = list(range(asked["begin"], asked["end"] + 1, EVERY))
    sections, charts = [], {}
    for number, answer in enumerate(asked["answers"]):
        panel, series = answer["panel"], answer["series"]
        place = panel["gridPos"]
        if place["y"] >= ROWS:
            continue
        box = f"left:{place['x'] * width + 4:.0f}px;top:{place['y'] * cell + 4}px;width:{place['w'] * width - 8:.0f}px;height:{place['h'] * cell - 8}px"
        title = html.escape(panel["title"])
        if panel["type"] == "row":
            sections.append(f'<section class="row" style="{box}">{title}</section>')
            continue
        inside = ""
        if panel["type"] == "stat":
            inside = stat(panel, series)
        elif series:
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            rows = [[one["values"].get(str(moment)) for moment in at] for one in series]
            names = "".join(f'<span><i style="background:{COLOURS[n % len(COLOURS)]}"></i>{html.escape(one["name"] or "value")}</span>' for n, one in enumerate(series))
            inside = f'<div id="chart-{number}"></div><div class="names">{names}</div>'
            highest = max(value for row in rows for value in row if value is not None)
            charts[f"chart-{number}"] = {
                "at": at,
                "series": [{"name": one["name"], "values": row} for one, row in zip(series, rows)],
                "unit": panel["fieldConfig"]["defaults"].get("unit"),
                "height": place["h"] * cell - 8 - 72,
                "stacked": custom.get("stacking", {}).get("mode") == "normal",
                "bars": custom.get("drawStyle") == "bars",
                "fill": f"{int(custom.get('fillOpacity', 0) * 2.55):02x}" if custom.get("fillOpacity") else "",
                # A panel of nothing but zeros has room above them.
                "most": 0 if highest > 0 else 1,
            }
        else:
            inside = '<div class="none">No data</div>'
        sections.append(f'<section style="{box}"><h2>{title}</h2>{inside}</section>')
    css, script = ((Path(uplot) / name).read_text() for name in ("uPlot.min.css", "uPlot.iife.min.js"))
    return PAGE.format(theme=theme, css=css, script=script, sections="".join(sections), charts=json.dumps(charts), colours=json.dumps(COLOURS))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["openmetrics"]:
            for line in openmetrics(sys.stdin):
                print(line)
        case ["ask", address, pages]:
            json.dump(ask(address, pages), sys.stdout)
        case ["page", theme, uplot]:
            print(page(theme, uplot, json.load(sys.stdin)))
        case _:
            raise SystemExit(__doc__)
