"""Renders the chart and the overlays, and finds what differs."""

import json
import re
import subprocess
from pathlib import Path

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "chart"

# Labels that say that Helm made an object.
HELM_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")


class Strict(yaml.SafeLoader):
    """Refuses a key that is there twice, as whatever reads a rendered chart through kustomize does (Flux)."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise AssertionError(f"{node.start_mark}: twice: {', '.join(twice)}")
        return super().construct_mapping(node, deep)


def text(path):
    return (ROOT / path).read_text()


def values(name):
    """The values of a file in deploy/chart/ci."""
    return yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())


def combinations():
    """The names of all files in deploy/chart/ci."""
    return sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))


def with_values(base, **changes):
    """A copy of values with some replaced. Keys with two underscores are nested: tls__certManager."""
    result = json.loads(json.dumps(base))
    for key, value in changes.items():
        *parents, last = key.split("__")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return result


def chart(given, name="ebbtide", namespace="kube-system"):
    """The chart's objects."""
    with helm_python.Chart.load(CHART) as loaded:
        rendered = loaded.render(given, name=name, namespace=namespace)
    return [thing for path, made in rendered.items() if not path.endswith(".txt") for thing in objects(made)]


def kustomize(folder):
    """The objects of a folder with a kustomization."""
    made = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    if made.returncode:
        raise AssertionError(f"{folder}: {made.stderr}")
    return objects(made.stdout)


def objects(made):
    return [thing for thing in yaml.load_all(made, Loader=Strict) if thing]


def name(thing):
    meta = thing["metadata"]
    return f"{thing['kind']} {meta.get('namespace', '-')}/{meta['name']}"


def by_name(things):
    named = {name(thing): thing for thing in things}
    assert len(named) == len(things), "each object once"
    return named


def one(things, kind, called="ebbtide"):
    """The one object of this kind and name."""
    [found] = [thing for thing in things if thing["kind"] == kind and thing["metadata"]["name"] == called]
    return found


def without_helm(thing):
    """The object without the labels that say that Helm made it."""
    thing = json.loads(json.dumps(thing))
    for label in HELM_LABELS:
        thing["metadata"].get("labels", {}).pop(label, None)
    return thing


def leaves(value, path=""):
    """Every leaf of an object with its path."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{at}]")
    else:
        yield path, value


def differences(left, right):
    """What differs between two sets of objects, a line each."""
    left, right = by_name(left), by_name(right)
    lines = [f"only in the first: {called}" for called in sorted(left.keys() - right.keys())]
    lines += [f"only in the second: {called}" for called in sorted(right.keys() - left.keys())]
    for called in sorted(left.keys() & right.keys()):
        one, other = dict(leaves(left[called])), dict(leaves(right[called]))
        for path in sorted(one.keys() | other.keys()):
            if one.get(path) != other.get(path):
                lines.append(f"{called}{path}: {repr(one.get(path))[:200]}, {repr(other.get(path))[:200]}")
    return lines


def containers(things):
    """All containers of all Deployments, with their pod's spec."""
    for thing in things:
        if thing["kind"] == "Deployment":
            pod = thing["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield pod, container


def flags():
    """The flags of `ebbtide serve`, without dashes: those of the table in docs/flags.md, which `cargo test` holds against the program."""
    table = text("docs/flags.md").split("<!-- flags -->\n")[1]
    return re.findall(r"^\| `--([a-z-]+)`", table, re.MULTILINE)
