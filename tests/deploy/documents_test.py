"""What the documents say of installing: every command and every file that they name is one that works here."""

import re
import shlex
import tempfile
import unittest
from pathlib import Path

import helm_python
import yaml

import render
from chart_test import arguments
from render import DEPLOY, ROOT, chart, one, text

PAGES = ["README.md", "docs/quick-start.md", "docs/install.md", "docs/chart.md", "docs/expander.md"]

# What readers put in their own for.
OWN = {"$CLUSTER": "blue", "$VERSION": "v1.34.0", "$REGISTRY": "registry.example.com", "$QUEUE": "https://sqs.example.com/1/ebbtide"}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", text(page), re.DOTALL)


def commands(page):
    """The commands in a page's shell blocks, each a list of words."""
    for block in blocks(page, "sh"):
        for name, value in OWN.items():
            block = block.replace(name, value)
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def after(words, *flags):
    """The values of a flag that is given once or more."""
    return [words[at + 1] for at, word in enumerate(words) if word in flags]


class Documents(unittest.TestCase):
    def test_every_chart_that_is_to_be_installed_can_be(self):
        found = 0
        for page in PAGES:
            for words in commands(page):
                if words[:2] != ["helm", "install"] or words[3] != "deploy/chart":
                    continue
                given = {}
                for expression in after(words, "--set"):
                    merge(given, helm_python.parse_set_string(expression))
                [namespace] = after(words, "--namespace", "-n")
                one(chart(given, name=words[2], namespace=namespace), "Deployment")
                found += 1
        self.assertGreaterEqual(found, 3)

    def test_the_kustomization_of_ones_own_changes_what_it_says(self):
        [block] = [block for block in blocks("docs/install.md", "yaml") if "kind: Kustomization" in block]
        with tempfile.TemporaryDirectory(dir=DEPLOY) as folder:
            own = block.replace("- deploy/overlays", "- ../overlays")
            (Path(folder) / "kustomization.yaml").write_text(own)
            things = render.kustomize(folder)
        wanted = yaml.safe_load(block)
        args = arguments(things)
        patches = yaml.safe_load(wanted["patches"][0]["patch"])
        self.assertLessEqual({patch["value"] for patch in patches}, set(args))
        self.assertEqual([arg for arg in args if "MY-CLUSTER" in arg], [], "nothing is left to be put in")
        images = {container["name"]: container["image"] for _, container in render.containers(things)}
        self.assertEqual(images["ebbtide"].split(":")[0], "REGISTRY/ebbtide")

    def test_what_cilium_needs_is_a_rule_for_the_agents_port_that_names_no_address(self):
        [block] = [block for block in blocks("docs/install.md", "yaml") if "extraEgress" in block]
        rules = one(chart({**render.values("sidecar"), **yaml.safe_load(block)}), "NetworkPolicy")["spec"]["egress"]
        agent = [rule for rule in rules if {"port": 80, "protocol": "TCP"} in rule["ports"]]
        self.assertEqual(["to" in rule for rule in agent], [True, False])

    def test_every_folder_and_file_that_is_named_is_there(self):
        for page in PAGES:
            for path in re.findall(r"(?<![\w./])deploy/[\w./-]*\w", text(page)):
                path = path.replace("deploy/aws/iam/blue", "deploy/aws/iam")
                if not path.startswith("deploy/aws/iam/$"):
                    self.assertTrue((ROOT / path).exists(), f"{page}: {path}")

    def test_every_flag_that_is_given_to_the_program_is_one_of_its_own(self):
        found = 0
        for page in PAGES:
            for words in commands(page):
                if words[0].endswith("ebbtide") and "serve" in words:
                    given = [word.split("=")[0].removeprefix("--") for word in words if word.startswith("--")]
                    self.assertEqual([flag for flag in given if flag not in render.flags()], [])
                    found += len(given)
        self.assertGreater(found, 1)

    def test_the_parameters_of_the_stack_are_the_templates(self):
        from aws_test import template

        parameters = template()["Parameters"].keys()
        for words in (words for page in PAGES for words in commands(page)):
            if words[:3] == ["aws", "cloudformation", "deploy"]:
                given = [word.split("=")[0] for word in words[words.index("--parameter-overrides") + 1 :]]
                self.assertLessEqual(set(given), parameters)

    def test_the_table_of_permissions_has_each_action_of_the_policies_once_and_in_their_order(self):
        from aws_test import policies

        section = text("docs/coming-from-in-tree.md").split("\n## Permissions\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
        listed = [action for row in rows for action in re.findall(r"`([a-z0-9]+:\w+)`", row)]
        for policy in ("read", "size", "hooks"):
            actions = sorted(action for statement in policies()[policy]["Statement"] for action in statement["Action"])
            self.assertEqual(sorted(listed[: len(actions)]), actions, policy)
            del listed[: len(actions)]
        self.assertEqual(listed, [])

    def test_the_quick_start_is_ten_commands(self):
        self.assertEqual(len(list(commands("docs/quick-start.md"))), 10)


def merge(into, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value
