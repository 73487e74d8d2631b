#!/usr/bin/env python3
"""What the image's binary is made of, as CycloneDX 1.5 on standard output: every crate that is linked into it, with version, licence and checksum.

The same Cargo.lock gives the same bytes. https://cyclonedx.org/docs/1.5/json/
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]


def metadata():
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--no-default-features"]
    command += [argument for target in TARGETS for argument in ("--filter-platform", target)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(resolve):
    """The packages that the root needs at run time, and whom each of them needs."""
    nodes = {node["id"]: node for node in resolve["nodes"]}
    needs, open_ends = {}, [resolve["root"]]
    while open_ends:
        package = open_ends.pop()
        if package not in needs:
            is_linked = lambda dependency: any(kind["kind"] is None for kind in dependency["dep_kinds"])
            needs[package] = sorted(d["pkg"] for d in nodes[package]["deps"] if is_linked(d))
            open_ends += needs[package]
    return needs


def main():
    data = metadata()
    packages = {package["id"]: package for package in data["packages"]}
    lock = tomllib.loads(Path("Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    # Macros run in the compiler, and are not in the binary.
    is_macro = lambda package: any("proc-macro" in target["kind"] for target in packages[package]["targets"])
    needs = {package: [n for n in of if not is_macro(n)] for package, of in linked(data["resolve"]).items() if not is_macro(package)}
    reachable, open_ends = set(), [data["resolve"]["root"]]
    while open_ends:
        package = open_ends.pop()
        if package not in reachable:
            reachable.add(package)
            open_ends += needs[package]
    reference = lambda package: f"pkg:cargo/{packages[package]['name']}@{packages[package]['version']}"

    def component(package):
        of = packages[package]
        entry = {"type": "library", "bom-ref": reference(package), "name": of["name"], "version": of["version"]}
        entry["purl"] = reference(package)
        if of["license"]:
            entry["licenses"] = [{"expression": " ".join(of["license"].replace("/", " OR ").split())}]
        if checksum := checksums.get((of["name"], of["version"])):
            entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return entry

    root = data["resolve"]["root"]
    others = sorted((package for package in reachable if package != root), key=reference)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(root), "type": "application"}},
        "components": [component(package) for package in others],
        "dependencies": [
            {"ref": reference(package), "dependsOn": sorted({reference(need) for need in needs[package]})}
            for package in [root, *others]
        ],
    }
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()


main()
