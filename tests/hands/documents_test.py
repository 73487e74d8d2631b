"""Each command in the documents is run on the simulated worlds, or the reason why it cannot be stands here."""

import re
import shlex
import shutil
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from worlds import ROOT, Worlds, until

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Commands that cannot be run on the worlds, and who runs or checks them.
ELSEWHERE = {
    r"(\w+=\$\(|for .*\n *)?aws (cloudformation|iam|eks create-pod-identity-association) ": "the worlds have no CloudFormation, no IAM and no Pod Identity; tests/deploy.sh checks template, parameters and policies",
    r"helm ": "the worlds have none of its objects; tests/deploy.sh renders what it would install",
    r"kubectl apply ": "the worlds have no RBAC, Deployments that run, or schemas; tests/deploy.sh holds every object against the schemas",
    r"kubectl .*\b(auth can-i|create clusterrole(binding)?) ": "the worlds have no RBAC; tests/deploy.sh looks at each role",
    r"kubectl .*\b(deploy/|deployment[ /]|port-forward )": "ebbtide is no pod of the simulated cluster",
    r"kubectl .*\blogs -l ": "the same",
    r"kubectl exec --stdin |open http": "the same; tests/status.sh opens the page",
    r"cargo (run --locked -- simulate|test|build|run --example)|target/release/ebbtide --version": ".ci/run does: simulate, tests, the image's build; tests/moto.sh makes the table",
    r"aws autoscaling (terminate-instance-in-auto-scaling-group|complete-lifecycle-action) ": "a defect has left no instance here; hands_test.py makes the first call, ebbtide the second",
    r"aws ec2 describe-instance-types --output json >": "the worlds have few types; tests/moto.sh makes the table from moto's",
    r"deploy/image/build.sh|skopeo |podman |cosign |docker ": "tests/image.sh builds and runs the image; registries and signatures need the network",
    r"cluster-autoscaler --|kubectl .* get lease cluster-autoscaler ": "another project's program; tests/scale_in and tests/groups have its stand-ins",
}

# What readers put in their own for.
OWN = {
    # The simulated cluster keeps no Secrets; kubectl makes one of the files all the same.
    "create secret": "create secret --dry-run=client",
    "ip-10-0-3-7.eu-central-1.compute.internal": "NODE",
    "--node-group-auto-discovery=…": "",
    "MY-GROUP": "web",
    "NAMESPACE": "default",
    ".ebbtide/env": "$WORLDS",
    "target/release/ebbtide": "ebbtide",
}

# Commands that go on until somebody stops them.
ENDLESS = re.compile(r"ebbtide serve|--watch\b")


def commands(page):
    """The commands in a page's shell blocks: whole ones, over as many lines as they take."""
    for block in re.findall(r"^```(?:sh|console|bash|shell)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        line = ""
        for part in block.splitlines():
            line += part + "\n"
            try:
                words = shlex.split(line.replace("\\\n", " "), comments=True)
            except ValueError:
                continue
            if part.endswith("\\") or words[:1] == ["for"] and "done" not in words:
                continue
            if words:
                yield line.strip()
            line = ""
        assert not line.strip(), f"{page.name}: {line}"


def reason(command):
    return next((pattern for pattern in ELSEWHERE if re.match(pattern, command)), None)


def runnable(command, worlds):
    for written, ours in OWN.items():
        command = command.replace(written, ours)
    if re.search(r"\b(OTHER|INSTANCE)\b", command):
        other, instance = until("a node stays", worlds.any_node)
        command = re.sub(r"\bOTHER\b", other, re.sub(r"\bINSTANCE\b", instance, command))
    command = re.sub(r"\bNODE\b(?!:)", worlds.subject, command)
    command = command.replace("$WORLDS", str(worlds.shell)).replace("http://127.0.0.1:9086", worlds.admin)
    if shutil.which("jq") is None:
        command = re.sub(r"\| jq '[^']*'", "| cat", command)
    if ENDLESS.search(command):
        command = f"timeout --preserve-status --signal INT 2 {command}"
    return command


def run(page):
    """What went wrong on a page, and which reasons were needed."""
    used, here = set(), []
    for command in commands(page):
        (used.add(reason(command)) if reason(command) else here.append(command))
    if not here:
        return used, [], 0
    worlds = Worlds()
    try:
        failures = on(worlds, page, here)
    finally:
        worlds.stop()
    return used, failures, len(here)


def on(worlds, page, here):
    """Runs a page's commands one after the other."""
    failures = []
    worlds.environment |= {"EBBTIDE_LISTEN": "127.0.0.1:0", "EBBTIDE_ADMIN_LISTEN": "127.0.0.1:0"}
    # The page of the worlds is about the node that leaves, the others about any.
    worlds.subject = worlds.node("batch")[0]
    if page.name == "simulate.md":
        nodes = worlds.json("kubectl get nodes")["items"]
        [worlds.subject] = [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]
    with tempfile.TemporaryDirectory() as folder:
        for entry in ROOT.iterdir():
            (Path(folder) / entry.name).symlink_to(entry)
        for command in here:
            code, told = worlds.bash(runnable(command, worlds), cwd=folder)
            # kubectl ends with 1 when it is interrupted.
            if code != 0 and not (ENDLESS.search(command) and code == 1 and "rror" not in told):
                failures.append(f"{page.name}: {command}\n{code}: {told}")
    return failures


class Documents(unittest.TestCase):
    def test_each_command_works_on_the_worlds_or_says_why_it_cannot(self):
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(run, PAGES))
        failures = [failure for _, failures, _ in results for failure in failures]
        self.assertEqual(failures, [], "\n\n" + "\n\n".join(failures))
        self.assertGreater(sum(count for *_, count in results), 40, "commands that were run")
        used = set().union(*(used for used, *_ in results))
        self.assertEqual(set(ELSEWHERE) - used, set(), "reasons that no command needs")
