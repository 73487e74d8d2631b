"""The chart: what it renders from every file in deploy/chart/ci, and what it refuses."""

import json
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import helm_python
import jsonschema
import kubernetes_validate
import yaml

import made
import render
from render import CHART, chart, combinations, one, values, with_values

# The oldest and the newest Kubernetes whose schemas are held against what is rendered. matchLabelKeys and policies need 1.30.
VERSIONS = ("1.30", kubernetes_validate.latest_version())

# Kinds of others, without schemas here: the fields that their documentation has.
# https://cert-manager.io/docs/reference/api-docs/, https://prometheus-operator.dev/docs/api-reference/api/
OTHERS = {
    "Certificate": {"isCA", "commonName", "secretName", "dnsNames", "usages", "duration", "renewBefore", "privateKey", "issuerRef"},
    "Issuer": {"selfSigned", "ca"},
    "ServiceMonitor": {"selector", "endpoints"},
    "PrometheusRule": {"groups"},
}


def schema():
    return json.loads((CHART / "values.schema.json").read_text())


def check_against_schemas(test, things):
    """Holds every object against the schemas of Kubernetes; nothing may be in it that they do not name."""
    for thing in things:
        if thing["kind"] in OTHERS:
            test.assertLessEqual(thing["spec"].keys(), OTHERS[thing["kind"]], render.name(thing))
            continue
        for version in VERSIONS:
            with test.subTest(object=render.name(thing), version=version):
                kubernetes_validate.validate(thing, version, strict=True)


class WhatIsRendered(unittest.TestCase):
    def test_helm_finds_nothing_to_say_of_the_chart(self):
        for name in combinations():
            with self.subTest(values=name):
                said = helm_python.lint(CHART, values=values(name), namespace="kube-system")
                self.assertEqual(said["errors"], [])
                # Of severity 1 is that the chart has no icon.
                self.assertEqual([message for message in said["messages"] if message["severity"] > 1], [])

    def test_every_object_is_one_that_kubernetes_knows(self):
        for name in combinations():
            with self.subTest(values=name):
                check_against_schemas(self, chart(values(name)))

    def test_every_namespaced_object_names_its_namespace(self):
        cluster_wide = {"ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
        for name in combinations():
            for thing in chart(values(name), namespace="elsewhere"):
                expected = None if thing["kind"] in cluster_wide else "elsewhere"
                if thing["metadata"]["name"].endswith("-events") and thing["kind"] in ("Role", "RoleBinding"):
                    expected = "default"
                self.assertEqual(thing["metadata"].get("namespace"), expected, render.name(thing))
                self.assertNotIn("kube-system", json.dumps(thing))

    def test_pods_are_restricted(self):
        for name in combinations():
            for pod, container in render.containers(chart(values(name))):
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])
                self.assertEqual(pod["securityContext"]["runAsUser"], 65532)
                self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
                self.assertEqual(container["securityContext"], expected)
                self.assertFalse({"hostNetwork", "hostPID", "hostIPC"} & pod.keys())

    def test_every_flag_is_one_of_the_programs(self):
        for name in combinations():
            args = arguments(chart(values(name)))
            self.assertEqual(args[0], "serve")
            given = [re.fullmatch(r"--([a-z-]+)=.+", arg).group(1) for arg in args[1:]]
            self.assertEqual([flag for flag in given if flag not in render.flags()], [])

    def test_values_become_flags(self):
        args = arguments(chart(values("everything")))
        for expected in (
            "--node-group-auto-discovery=asg:tag=team=web,k8s.io/cluster-autoscaler/blue",
            "--node-group-auto-discovery=asg:tag=team=batch",
            "--nodes=0:10:by-name",
            "--cluster-name=blue",
            "--region=eu-central-1",
            "--manage-lifecycle-hooks=retain",
            "--delete-node-after=10m",
            "--log-level=debug",
            "--eviction-qps=0.5",
            "--max-pods=1100",
            "--static-instance-types=true",
            "--daemonset-flush-namespace=logging",
            "--daemonset-flush-namespace=dns",
            "--admin-listen=[::]:9086",
            "--leader-elect-resource-name=drains",
            "--templates-config-map=drains-templates",
        ):
            self.assertIn(expected, args)
        autoscaler = arguments(chart(values("everything")), container="cluster-autoscaler")
        self.assertIn("--balancing-ignore-label=tier", autoscaler)
        self.assertIn("--max-total-unready-percentage=45", autoscaler)

    def test_cluster_autoscaler_hands_over_in_time_where_ebbtide_does_not_answer_or_when_it_is_told(self):
        for given, wanted in (({}, "5m"), ({"max-failing-time": "20m"}, "20m")):
            things = chart(with_values(values("sidecar"), clusterAutoscaler__extraArgs=given))
            theirs = [arg for arg in arguments(things, container="cluster-autoscaler") if arg.startswith("--max-failing-time=")]
            self.assertEqual(theirs, [f"--max-failing-time={wanted}"], "once")

    def test_both_replicas_are_not_evicted_at_once_though_neither_is_ready(self):
        # One without a fresh look at the groups is not ready, and may lead and send heartbeats all the same.
        for name in combinations():
            [budget] = [thing for thing in chart(values(name)) if thing["kind"] == "PodDisruptionBudget"]
            self.assertEqual(budget["spec"].keys(), {"maxUnavailable", "selector"} | ({"unhealthyPodEvictionPolicy"} if values(name).get("replicas") == 1 else set()))

    def test_a_single_replica_that_is_not_ready_keeps_its_node_from_no_drain(self):
        [budget] = [thing for thing in chart(with_values(values("sidecar"), replicas=1)) if thing["kind"] == "PodDisruptionBudget"]
        self.assertEqual(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow")

    def test_the_name_of_the_cluster_is_enough_to_find_its_groups(self):
        expected = "--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/blue"
        self.assertIn(expected, arguments(chart(values("least"))))

    def test_roles_and_flags_go_together(self):
        def roles(things):
            return {thing["metadata"]["name"] for thing in things if thing["kind"] == "ClusterRole"}

        least, everything = chart(values("least")), chart(values("everything"))
        self.assertEqual(roles(least), {"ebbtide"})
        self.assertIn("--daemonset-guard=false", arguments(least))
        optional = {"drains-guard", "drains-conditions", "drains-pod-events", "drains-delete-nodes"}
        self.assertEqual(roles(everything), {"drains", "drains-cluster-autoscaler"} | optional)

    def test_the_policies_are_for_the_service_account_that_is_used(self):
        guard = one(chart(values("everything"), namespace="elsewhere"), "ValidatingAdmissionPolicy", "drains-guard")
        self.assertIn("'system:serviceaccount:elsewhere:drainer'", guard["spec"]["matchConditions"][0]["expression"])

    def test_the_config_map_that_a_flag_names_is_shipped_and_may_be_written_and_the_lease_made(self):
        things = chart(values("everything"))
        one(things, "ConfigMap", "drains-templates")
        rules = one(things, "Role", "drains")["rules"]
        allowed = [(rule["resources"], rule.get("resourceNames"), rule["verbs"]) for rule in rules[:3]]
        lease = [(["leases"], None, ["create"]), (["leases"], ["drains"], ["get", "update"])]
        self.assertEqual(allowed, [(["configmaps"], ["drains-templates"], ["get", "patch"]), *lease])

    def test_cluster_autoscaler_finds_what_its_cloud_config_names(self):
        things = chart(values("apart"))
        config = yaml.safe_load(one(things, "ConfigMap", "ebbtide-cloud-config")["data"]["cloud-config.yaml"])
        host, port = config["address"].split(":")
        service = one(things, "Service")
        self.assertEqual(host, f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc")
        self.assertEqual(int(port), service["spec"]["ports"][0]["port"])
        self.assertIn(host, one(things, "Certificate")["spec"]["dnsNames"], "the name that it checks")
        client = one(things, "Certificate", "ebbtide-client")["spec"]
        self.assertIn(f"--allowed-client={client['commonName']}", arguments(things))


    def test_cluster_autoscaler_finds_the_expander_in_one_pod(self):
        things = chart(values("everything"))
        ours, theirs = arguments(things), arguments(things, container="cluster-autoscaler")
        self.assertIn("--expander-listen=127.0.0.1:8087", ours)
        self.assertIn("--expander=grpc,least-waste,priority", theirs)
        self.assertIn("--grpc-expander-url=localhost:8087", theirs)
        shown = next(arg for arg in ours if arg.startswith("--expander-tls-cert=")).split("=")[1]
        self.assertIn(f"--grpc-expander-cert={shown}", theirs)
        pod = one(things, "Deployment", "drains")["spec"]["template"]["spec"]
        [secret] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "expander-tls"]
        self.assertEqual(secret["secretName"], "drains-expander")
        autoscaler = next(container for container in pod["containers"] if container["name"] == "cluster-autoscaler")
        [mount] = [mount for mount in autoscaler["volumeMounts"] if mount["name"] == "expander-tls"]
        self.assertEqual((mount["mountPath"], mount["subPath"]), (shown, "tls.crt"), "and not the key")
        self.assertIn("--expander-policy=/etc/ebbtide/expander/policy", ours)
        self.assertEqual(one(things, "ConfigMap", "drains-expander")["data"]["policy"].splitlines()[0], "capacity")

    def test_an_expander_that_cluster_autoscaler_would_not_ask_is_refused(self):
        for flag in ("expander", "grpc-expander-url", "grpc-expander-cert"):
            given = {flag: "least-waste"}
            with self.assertRaisesRegex(helm_python.HelmError, f"extraArgs.{flag} cannot be given .*use expander.next"):
                chart(with_values(values("everything"), clusterAutoscaler__extraArgs=given))
            without = chart(with_values(values("sidecar"), clusterAutoscaler__extraArgs=given))
            self.assertIn(f"--{flag}=least-waste", arguments(without, container="cluster-autoscaler"))

    def test_choices_of_the_expander_may_be_published_where_they_are(self):
        events = {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}
        for given, published in (({}, True), ({"expander__events": False}, False), ({"expander__enabled": False}, False)):
            things = chart(with_values(values("everything"), **given))
            self.assertEqual("--expander-events=true" in arguments(things), published)
            self.assertEqual(events in one(things, "Role", "drains")["rules"], published)

    def test_cluster_autoscaler_finds_the_expander_apart(self):
        things = chart(with_values(values("apart"), expander__enabled=True))
        self.assertIn("--expander-listen=0.0.0.0:8087", arguments(things))
        theirs = yaml.safe_load(re.sub("# ((grpc-)?expander)", r"\1", render.text("deploy/cluster-autoscaler-values.yaml")))["extraArgs"]
        host, port = theirs["grpc-expander-url"].split(":")
        self.assertIn(host, one(things, "Certificate")["spec"]["dnsNames"], "the name that it checks")
        service = {port["name"]: port for port in one(things, "Service")["spec"]["ports"]}["expander"]
        self.assertEqual(service["port"], int(port))
        container = one(things, "Deployment")["spec"]["template"]["spec"]["containers"][0]
        self.assertIn({"name": service["targetPort"], "containerPort": 8087}, container["ports"])
        let_in = one(things, "NetworkPolicy")["spec"]["ingress"][1]["ports"]
        self.assertEqual(let_in, [{"port": "grpc"}, {"port": "expander"}])
        without = json.dumps(chart(values("apart")))
        self.assertNotIn("expander", without.replace(json.dumps("expander"), ""), "off by default")

    def test_without_an_election_there_is_one_replica_and_never_another_beside_it(self):
        for no in (False, "false"):
            alone = with_values(values("sidecar"), replicas=1, extraArgs={"leader-elect": no})
            self.assertEqual(one(chart(alone), "Deployment")["spec"]["strategy"], {"type": "Recreate"})
            for replicas in (2, 3):
                with self.assertRaisesRegex(helm_python.HelmError, "extraArgs.leader-elect=false needs replicas=1"):
                    chart(with_values(alone, replicas=replicas))
        for given in ({}, {"leader-elect": True}):
            spec = one(chart(with_values(values("sidecar"), extraArgs=given)), "Deployment")["spec"]
            self.assertEqual((spec["replicas"], spec["strategy"]["type"]), (2, "RollingUpdate"))

    def test_a_changed_role_reaches_the_pods(self):
        def template(role):
            annotations = {"eks.amazonaws.com/role-arn": role} if role else {}
            things = chart(with_values(values("sidecar"), serviceAccount__annotations=annotations))
            return json.dumps(one(things, "Deployment")["spec"]["template"])

        # What a role gives is put into a pod when it is made, so the pods have to be made anew.
        one_role, other = "arn:aws:iam::123456789012:role/one", "arn:aws:iam::123456789012:role/other"
        self.assertEqual(len({template(None), template(one_role), template(other)}), 3)
        self.assertEqual(template(one_role), template(one_role), "and for nothing else")

    def test_the_notes_say_what_an_association_of_pod_identity_needs(self):
        with helm_python.Chart.load(CHART) as loaded:
            rendered = loaded.render(values("sidecar"), name="ebbtide", namespace="elsewhere")
        [notes] = [made for path, made in rendered.items() if path.endswith("NOTES.txt")]
        self.assertIn("kubectl --namespace elsewhere rollout restart deployment/ebbtide\n", notes)

    def test_alert_rules_and_dashboard_are_the_files(self):
        everything = {"serviceMonitor": True, "prometheusRule": True, "dashboard": True, "labels": {"release": "prometheus"}}
        things = chart(with_values(values("sidecar"), monitoring=everything))
        self.assertEqual(one(things, "PrometheusRule")["spec"], yaml.safe_load(render.text("deploy/alerts/ebbtide.rules.yaml")))
        dashboard = one(things, "ConfigMap", "ebbtide-dashboard")
        self.assertEqual(json.loads(dashboard["data"]["ebbtide.json"]), json.loads(render.text("deploy/dashboards/ebbtide.json")))
        for kind in ("ServiceMonitor", "PrometheusRule"):
            self.assertEqual(one(things, kind)["metadata"]["labels"]["release"], "prometheus")

    def test_alerts_that_are_disabled_are_left_out_and_no_others(self):
        rules = yaml.safe_load(render.text("deploy/alerts/ebbtide.rules.yaml"))
        off = {"EbbtideScaleInOld"} | {rule["alert"] for rule in rules["groups"][0]["rules"]}
        for group in rules["groups"]:
            group["rules"] = [rule for rule in group["rules"] if rule["alert"] not in off]
        expected = {"groups": [group for group in rules["groups"] if group["rules"]]}
        monitoring = {"prometheusRule": True, "disabledAlerts": sorted(off)}
        self.assertEqual(one(chart(with_values(values("sidecar"), monitoring=monitoring)), "PrometheusRule")["spec"], expected)
        with self.assertRaisesRegex(helm_python.HelmError, "there is no alert EbbtideScaleInOdl"):
            chart(with_values(values("sidecar"), monitoring={**monitoring, "disabledAlerts": ["EbbtideScaleInOdl"]}))


class ADryRun(unittest.TestCase):
    def test_it_is_alone_in_its_pod_and_keeps_nothing_from_others(self):
        given = {"image": {"repository": "registry.example/ebbtide"}, "clusterName": "blue", "replicas": 1}
        for dry in (True, "true"):
            things = chart({**given, "extraArgs": {"dry-run": dry}}, name="ebbtide-dry")
            containers = one(things, "Deployment", "ebbtide-dry")["spec"]["template"]["spec"]["containers"]
            self.assertEqual([container["name"] for container in containers], ["ebbtide"])
            self.assertIn("--dry-run=true", containers[0]["args"])
            kinds = {thing["kind"] for thing in things}
            self.assertFalse(kinds & {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"})
            self.assertNotIn("ca-metrics", json.dumps(things))
            names = {thing["metadata"]["name"] for thing in things}
            self.assertFalse({name for name in names if "cluster-autoscaler" in name})
            verbs = {verb for thing in things for rule in thing.get("rules", []) for verb in rule["verbs"]}
            self.assertEqual(verbs, {"get", "list", "watch"})
            [budget] = [thing for thing in things if thing["kind"] == "PodDisruptionBudget"]
            self.assertEqual(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow")


class WhatIsRefused(unittest.TestCase):
    def test_what_is_missing_is_named(self):
        sidecar = values("sidecar")
        for missing, words in (
            (with_values(sidecar, image__repository=""), "image.repository has to be given"),
            (with_values(sidecar, nodeGroups__autoDiscovery=[]), "clusterName has to be given"),
            (with_values(sidecar, clusterAutoscaler__image__tag=""), "clusterAutoscaler.image.tag has to be given"),
        ):
            with self.assertRaisesRegex(helm_python.HelmError, re.escape(words)):
                chart(missing)

    def test_a_key_that_is_misspelt_is_refused_wherever_it_is(self):
        for place in made.groups_of_values():
            wrong = with_values(values("sidecar"), **{"__".join([*place, "misspelt"]): "x"})
            with self.assertRaisesRegex(helm_python.HelmError, "misspelt", msg=place):
                chart(wrong)

    def test_values_that_cannot_be_are_refused(self):
        for wrong in (
            {"mode": "beside"},
            {"replicas": 0},
            {"extraArgs": {"patients": "2h"}},
            {"extraArgs": {"listen": "0.0.0.0:1"}},
            {"manageLifecycleHooks": True},
            {"nodeGroups__nodes": ["by-name"]},
            {"tls__allowedClients": []},
        ):
            with self.assertRaises(helm_python.HelmError, msg=wrong):
                chart(with_values(values("sidecar"), **wrong))


    def test_a_chart_that_has_lost_its_files_is_refused(self):
        # Where symbolic links are dropped, or folders that are not known, as from an archive.
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(CHART, Path(folder) / "chart", symlinks=True, ignore=lambda *_: ["alerts", "dashboards"])
            with helm_python.Chart.load(copy) as loaded:
                loaded.render(values("sidecar"), name="ebbtide", namespace="kube-system")
                for wanted, words in (("prometheusRule", "alerts/ebbtide.rules.yaml"), ("dashboard", "dashboards/ebbtide.json")):
                    with self.assertRaisesRegex(helm_python.HelmError, re.escape(f"{words} is missing")):
                        loaded.render(with_values(values("sidecar"), monitoring={wanted: True}), name="ebbtide", namespace="kube-system")


class WhatIsDocumented(unittest.TestCase):
    def test_the_schema_has_every_value_and_no_other(self):
        jsonschema.Draft7Validator.check_schema(schema())
        documented = {key for key, _, _ in made.documented_values()}
        self.assertEqual(made.keys_of_schema(schema()) - {"global"}, documented)

    def test_every_default_fits_the_schema(self):
        jsonschema.validate(yaml.safe_load((CHART / "values.yaml").read_text()), schema())

    def test_every_flag_of_the_program_can_be_given_once(self):
        extra = set(schema()["properties"]["extraArgs"]["propertyNames"]["enum"])
        fixed = set(made.FLAGS_OF_THE_CHART)
        self.assertEqual(extra | fixed, set(render.flags()))
        self.assertEqual(extra & fixed, set())

    def test_what_is_made_from_other_files_is_up_to_date(self):
        for path, wanted in made.files():
            self.assertEqual(path.read_text(), wanted, f"{path}: run tests/deploy.sh --write")

    def test_the_chart_has_no_symbolic_link(self):
        # Flux leaves them out of its archives, Rancher refuses a chart that has one.
        self.assertEqual([str(path) for path in CHART.rglob("*") if path.is_symlink()], [])

    def test_the_chart_has_the_programs_version(self):
        version = re.search(r'^version = "(.*)"', render.text("Cargo.toml"), re.MULTILINE).group(1)
        described = yaml.safe_load((CHART / "Chart.yaml").read_text())
        self.assertEqual((described["version"], described["appVersion"]), (version, version))


def arguments(things, container="ebbtide"):
    [args] = [found["args"] for _, found in render.containers(things) if found["name"] == container]
    return args
