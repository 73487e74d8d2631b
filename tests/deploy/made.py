"""What is made from other files: the table of values in docs/chart.md, the flags in the chart's schema, the chart's copies of the alert
rules and the dashboard, and the alert rules as an object for the Prometheus operator.

As a program, writes them (tests/deploy.sh --write).
"""

import json
import re

import yaml

import render
from render import CHART, DEPLOY, ROOT

MARK = "<!-- values -->\n"

RULE_HEAD = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: ebbtide
  namespace: kube-system
  labels:
    app.kubernetes.io/name: ebbtide
    app.kubernetes.io/instance: ebbtide
spec:
"""

# Flags that the chart sets itself or has a value of its own for: they are not for extraArgs.
FLAGS_OF_THE_CHART = (
    "admin-listen",
    "cluster-name",
    "daemonset-guard",
    "delete-node-after",
    "expander-events",
    "expander-listen",
    "expander-policy",
    "expander-tls-cert",
    "expander-tls-key",
    "leader-elect-pod",
    "leader-elect-resource-name",
    "listen",
    "log-format",
    "log-level",
    "manage-lifecycle-hooks",
    "node-group-auto-discovery",
    "nodes",
    "queue-url",
    "region",
    "templates-config-map",
    "tls-cert",
    "tls-client-ca",
    "allowed-client",
    "tls-key",
)


def documented_values():
    """Every key of values.yaml with a comment right above it: its path with dots, the comment, its default."""
    path, comment, found = [], [], []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if match := re.match(r"\s*# ?(.*)", line):
            comment.append(match.group(1))
            continue
        if match := re.match(r"( *)([A-Za-z]+):", line):
            depth = len(match.group(1)) // 2
            path = [*path[:depth], match.group(2)]
            if comment:
                found.append((".".join(path), " ".join(comment)))
        comment = []
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    # `image` has no comment of its own, but those below it have.
    named = {key for key, _ in found}
    missing = {key.rsplit(".", 1)[0] for key, _ in found if "." in key} - named
    found += [(key, "") for key in missing]
    groups = {key.rsplit(".", 1)[0] for key, _ in found if "." in key}
    return [(key, text, None if key in groups else default(defaults, key)) for key, text in found]


def default(values, key):
    for part in key.split("."):
        values = values[part]
    return values


def groups_of_values():
    """Where values are, each a list of keys: at the top, and in every group."""
    return [[]] + [key.split(".") for key, _, value in documented_values() if value is None]


def keys_of_schema(schema, prefix=""):
    keys = set()
    for key, inner in schema.get("properties", {}).items():
        keys |= {prefix + key} | keys_of_schema(inner, f"{prefix}{key}.")
    return keys


def table():
    rows = ["| value | default | meaning |", "| --- | --- | --- |"]
    order = list(yaml_order())
    for key, text, value in sorted(documented_values(), key=lambda row: order.index(row[0])):
        if not text:
            continue
        shown = "" if value is None else f"`{json.dumps(value)}`"
        rows.append(f"| `{key}` | {shown} | {text.removesuffix('.').replace('|', chr(92) + '|')} |")
    return "\n".join(rows) + "\n"


def yaml_order():
    def walk(values, prefix):
        for key, inner in values.items():
            yield prefix + key
            if isinstance(inner, dict):
                yield from walk(inner, f"{prefix}{key}.")

    return walk(yaml.safe_load((CHART / "values.yaml").read_text()), "")


def files():
    """Every file with a part that is made, as it should be."""
    page = ROOT / "docs" / "chart.md"
    before, _, after = page.read_text().split(MARK)
    yield page, before + MARK + table() + MARK + after
    path = CHART / "values.schema.json"
    flags = [flag for flag in render.flags() if flag not in FLAGS_OF_THE_CHART]
    lines = ",\n".join(f'          "{flag}"' for flag in flags)
    made = re.sub(r'("propertyNames": \{\s*"enum": \[\n).*?(\n\s*\])', lambda m: m.group(1) + lines + m.group(2), path.read_text(), flags=re.DOTALL)
    yield path, made
    yield DEPLOY / "components" / "monitoring" / "prometheusrule.yaml", prometheus_rule()
    # A chart is what is in its folder: symbolic links do not survive every way to a cluster.
    for copied in ("alerts/ebbtide.rules.yaml", "dashboards/ebbtide.json"):
        yield CHART / copied, (DEPLOY / copied).read_text()


def prometheus_rule():
    rules = (DEPLOY / "alerts" / "ebbtide.rules.yaml").read_text()
    indented = "".join(f"  {line}" if line.strip() else line for line in rules.splitlines(keepends=True))
    return RULE_HEAD + indented


if __name__ == "__main__":
    for path, wanted in files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(wanted)
