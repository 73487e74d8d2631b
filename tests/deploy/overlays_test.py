"""The overlays: the same objects as the chart's, and the rights that `cargo test` holds against what the program asks for."""

import re
import tempfile
import unittest
from pathlib import Path

import yaml

import render
from chart_test import arguments, check_against_schemas
from render import DEPLOY, chart, differences, kustomize, one, text, values, with_values, without_helm

CLUSTER_AUTOSCALER = DEPLOY / "cluster-autoscaler"
OVERLAYS = {"sidecar": "sidecar", "eks": "apart"}


def overlay(name, *components):
    """The objects of an overlay, with components as a kustomization of one's own adds them."""
    with tempfile.TemporaryDirectory(dir=DEPLOY) as folder:
        own = {"resources": [f"../overlays/{name}"], "components": [f"../components/{component}" for component in components]}
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(own))
        return kustomize(folder)


def rules(things, but=()):
    """All rights that roles in these objects grant: who made them does not matter, nor how they are spread over rules."""
    granted = set()
    for thing in things:
        if thing["kind"] not in ("Role", "ClusterRole") or thing["metadata"]["name"] in but:
            continue
        where = thing["metadata"].get("namespace", "everywhere")
        for rule in thing["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            granted.add((where, group, resource, verb, name))
    return granted


def bound(things):
    """The roles that are bound to ebbtide's service account, by name and namespace."""
    account = {"kind": "ServiceAccount", "name": "ebbtide", "namespace": "kube-system"}
    bindings = [thing for thing in things if thing["kind"].endswith("RoleBinding")]
    return {(b["metadata"].get("namespace"), b["roleRef"]["name"]) for b in bindings if account in b["subjects"]}


class Overlays(unittest.TestCase):
    def test_an_overlay_has_the_objects_of_the_chart_and_no_others(self):
        for name, ours in OVERLAYS.items():
            with self.subTest(overlay=name):
                charts = [without_helm(thing) for thing in chart(values(ours))]
                self.assertEqual(differences(overlay(name), charts), [])

    def test_a_component_adds_what_the_chart_adds(self):
        monitoring = {"monitoring": {"serviceMonitor": True, "prometheusRule": True, "dashboard": True}}
        for component, name, more in (
            ("monitoring", "eks", monitoring),
            ("monitoring-sidecar", "sidecar", monitoring),
            ("expander", "eks", {"expander__enabled": True}),
            ("expander-sidecar", "sidecar", {"expander__enabled": True, "expander__tlsSecret": "ebbtide-expander"}),
        ):
            with self.subTest(component=component):
                things = overlay(name, component)
                charts = chart(with_values(values(OVERLAYS[name]), **more))
                self.assertEqual(differences(things, [without_helm(thing) for thing in charts]), [])
                check_against_schemas(self, things)

    def test_every_object_is_one_that_kubernetes_knows(self):
        for name in OVERLAYS:
            check_against_schemas(self, overlay(name))
        check_against_schemas(self, kustomize(CLUSTER_AUTOSCALER))

    def test_the_rights_are_those_that_cargo_test_holds_against_every_request(self):
        tested = list(yaml.safe_load_all(text("deploy/base/rbac.yaml")))
        optional = list(yaml.safe_load_all(text("deploy/rbac-delete-nodes.yaml")))
        its_own = "ebbtide-cluster-autoscaler"
        for name, ours in OVERLAYS.items():
            for things in (overlay(name), chart(values(ours))):
                self.assertEqual(rules(things, but=(its_own,)), rules(tested))
                self.assertEqual(bound(things) - {(None, its_own), ("kube-system", its_own)}, bound(tested))
        with_all = chart(with_values(values("apart"), deleteNodeAfter="10m"))
        self.assertEqual(rules(with_all), rules(tested + optional))
        self.assertEqual(bound(with_all), bound(tested + optional))

    def test_cluster_autoscaler_has_the_same_rights_in_either_mode(self):
        apart = kustomize(CLUSTER_AUTOSCALER)
        sidecar = [thing for thing in overlay("sidecar") if thing["metadata"]["name"] == "ebbtide-cluster-autoscaler"]
        self.assertEqual(rules(sidecar), rules(apart))
        made = {verb for _, _, resource, verb, _ in rules(apart) if resource == "configmaps"}
        self.assertNotIn("create", made, "whoever may make ConfigMaps in kube-system may make aws-auth")


class ClusterAutoscaler(unittest.TestCase):
    def manifest(self):
        [(pod, container)] = render.containers(kustomize(CLUSTER_AUTOSCALER))
        return pod, container

    def test_its_flags_are_the_same_wherever_it_runs(self):
        _, container = self.manifest()
        # In one pod it has one ebbtide, and hands over where that does not answer.
        beside = [arg for arg in arguments(overlay("sidecar"), container="cluster-autoscaler") if arg != "--max-failing-time=5m"]
        self.assertEqual(beside, container["args"])
        its_chart = yaml.safe_load(text("deploy/cluster-autoscaler-values.yaml"))
        given = {f"--{flag}={str(value).lower()}" for flag, value in its_chart["extraArgs"].items()}
        self.assertLessEqual(given, set(container["args"]))

    def test_as_many_nodes_as_it_drains_at_once_leave_room_for_others(self):
        made = {"apart": kustomize(CLUSTER_AUTOSCALER), "sidecar": overlay("sidecar"), "chart": chart(values("sidecar"))}
        for name, things in made.items():
            with self.subTest(made=name):
                given = dict(re.findall(r"--(max-(?:drain|scale-down)-parallelism)=(\d+)", " ".join(arguments(things, container="cluster-autoscaler"))))
                self.assertGreater(int(given["max-scale-down-parallelism"]), int(given["max-drain-parallelism"]))

    def test_it_mounts_what_ebbtides_side_makes(self):
        its_chart = yaml.safe_load(text("deploy/cluster-autoscaler-values.yaml"))
        pod, container = self.manifest()
        self.assertEqual(its_chart["extraVolumes"], pod["volumes"])
        self.assertEqual(its_chart["extraVolumeMounts"], container["volumeMounts"])
        things = overlay("eks")
        sources = pod["volumes"][0]["projected"]["sources"]
        config = one(things, "ConfigMap", sources[0]["configMap"]["name"])
        secret = one(things, "Certificate", "ebbtide-client")["spec"]["secretName"]
        self.assertEqual(secret, sources[1]["secret"]["name"])
        folder = container["volumeMounts"][0]["mountPath"]
        mounted = {f"{folder}/{file}" for file in [*config["data"], "tls.crt", "tls.key", "ca.crt"]}
        named = yaml.safe_load(config["data"]["cloud-config.yaml"])
        self.assertLessEqual({named["key"], named["cert"], named["cacert"]}, mounted)
        self.assertIn(f"--cloud-config={folder}/cloud-config.yaml", container["args"])
