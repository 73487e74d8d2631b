"""kubectl, the aws CLI and boto3 drive the simulated worlds, and ebbtide answers as in a cluster."""

import json
import re
import subprocess
import unittest
import urllib.request
from datetime import datetime, timezone

import boto3
from worlds import ROOT, Worlds, until


class OnWorlds(unittest.TestCase):
    """Tests that share a world. Each leaves enough nodes for the others."""

    @classmethod
    def setUpClass(cls):
        cls.worlds = Worlds()

    @classmethod
    def tearDownClass(cls):
        code, left, log = cls.worlds.stop()
        assert code == 0 and not left, (code, left, log)
        assert not [line for line in log.splitlines() if " WARN " in line or " ERROR " in line], log

    def status(self):
        url = re.search(r"http://\S+/status", self.worlds.greeting)[0] + ".json"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=10) as answer:
            return json.load(answer)


class Looking(OnWorlds):
    def test_kubectl_prints_what_is_there_as_it_does_of_a_cluster(self):
        nodes = self.worlds.run("kubectl get nodes --label-columns pool").splitlines()
        self.assertEqual(nodes[0].split(), ["NAME", "STATUS", "ROLES", "AGE", "VERSION", "POOL"])
        self.assertIn("Ready,SchedulingDisabled", "\n".join(nodes))
        pods = self.worlds.run("kubectl get po --all-namespaces --output wide")
        self.assertRegex(pods, r"kube-system +logs-\w+ +1/1 +Running +0 +\d+m")
        everything = self.worlds.run("kubectl get all,pdb")
        for part in ["replicaset.apps/shop", "poddisruptionbudget.policy/checkout", "pod/render-"]:
            self.assertIn(part, everything)

    def test_whom_the_blocked_drain_waits_for_is_told_everywhere(self):
        told = self.worlds.run("ebbtide status")
        self.assertRegex(told, r"Draining .* autoscaler +web +default/checkout-\w+ \(budget default/checkout\)")
        [one] = [one for one in self.status()["scaleIns"] if one["cause"] == "autoscaler"]
        self.assertIn("budget default/checkout", [wait["text"] for wait in one["waiting"]])
        described = self.worlds.run(f"kubectl describe node {one['node']}")
        self.assertRegex(described, r"Warning +ScaleInBlocked .*The disruption budget checkout needs 2 healthy pods")
        self.assertIn("DrainInProgress   True", described)
        planned = self.worlds.run(f"ebbtide plan {one['node']}")
        self.assertRegex(planned, r"blocked +default/checkout-\w+ +disruption budget default/checkout has no room")

    def test_all_that_is_missing_around_the_program_is_a_hook(self):
        code, told = self.worlds.bash("ebbtide check -n kube-system")
        self.assertIn("0 errors, 1 warnings", told)
        self.assertIn("hooks batch: no lifecycle hook of ours", told)
        self.assertEqual(code, 1)


class Removing(unittest.TestCase):
    def test_what_stays_after_a_removal_is_found_and_taken_back_by_the_documents_commands(self):
        worlds = Worlds()
        # Not OnWorlds: ebbtide warns of a tag like the one below.
        self.addCleanup(worlds.stop)
        (node, instance), (_, of_another) = worlds.node("web"), worlds.node("batch")
        worlds.run(f"kubectl cordon {node}")
        cordon = '{"cause":"rebalance-recommendation","until":"2999-01-01T00:00:00Z"}'
        worlds.run(f"kubectl annotate node {node} 'ebbtide/cordon={cordon}'")
        pods = worlds.json("kubectl get pods --namespace kube-system")["items"]
        pod = next(pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node)
        worlds.run(f"kubectl --namespace kube-system annotate pod {pod} ebbtide/guarded=true")
        for group, protected in ("web", instance), ("batch", of_another):
            worlds.run(f"aws ec2 create-tags --resources {protected} --tags Key=ebbtide/protected-from-scale-in,Value=lately")
            worlds.run(
                f"aws autoscaling set-instance-protection --auto-scaling-group-name {group} --protected-from-scale-in"
                f" --instance-ids {protected}"
            )
        page = (ROOT / "docs" / "install.md").read_text()
        section = page.split("### What stays after a removal\n")[1].split("\n## ")[0]
        [block] = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        told = worlds.run("set -e\n" + re.sub(r" NODE\b", f" {node}", block).replace("MY-GROUP", "web"))
        self.assertRegex(told, rf"{node} +{re.escape(cordon)}")
        self.assertIn(f"kube-system {pod}\n", told)
        self.assertRegex(told, rf"{instance}\tlately")
        # ebbtide is at work in this world and takes back none of this itself: the cordon is for ages, the tag names no moment.
        left = worlds.json(f"kubectl get node {node}")
        self.assertFalse(left["spec"].get("unschedulable"))
        self.assertNotIn("ebbtide/cordon", left["metadata"].get("annotations", {}))
        tagged = worlds.json("aws ec2 describe-tags --filters Name=key,Values=ebbtide/protected-from-scale-in")["Tags"]
        self.assertEqual([tag["ResourceId"] for tag in tagged], [of_another])
        seen = worlds.json(f"aws autoscaling describe-auto-scaling-instances --instance-ids {instance} {of_another}")["AutoScalingInstances"]
        self.assertEqual({one["InstanceId"]: one["ProtectedFromScaleIn"] for one in seen}, {instance: False, of_another: True})
        hooks = worlds.json("aws autoscaling describe-lifecycle-hooks --auto-scaling-group-name web")["LifecycleHooks"]
        self.assertNotIn("ebbtide", [hook["LifecycleHookName"] for hook in hooks])


class Driving(OnWorlds):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        environment = cls.worlds.environment
        session = boto3.Session(
            aws_access_key_id="any", aws_secret_access_key="any", region_name=environment["AWS_REGION"]
        )
        of = lambda service: session.client(service, endpoint_url=environment["AWS_ENDPOINT_URL"])
        cls.autoscaling, cls.ec2, cls.sqs = of("autoscaling"), of("ec2"), of("sqs")
        # Machines take their time to start: they do meanwhile.
        cls.worlds.run("aws autoscaling set-desired-capacity --auto-scaling-group-name batch --desired-capacity 4")
        cls.worlds.run("kubectl scale replicaset render --replicas 4")
        # What blocks the one that is under way.
        cls.worlds.run("kubectl delete poddisruptionbudget checkout && kubectl delete pod training --wait=false")

    def group(self, name):
        [group] = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return group

    def state(self, instance):
        """The instance's state in its group, or else EC2's."""
        found = self.autoscaling.describe_auto_scaling_instances(InstanceIds=[instance])["AutoScalingInstances"]
        if found:
            return found[0]["LifecycleState"]
        [reservation] = self.ec2.describe_instances(InstanceIds=[instance])["Reservations"]
        return reservation["Instances"][0]["State"]["Name"]

    def instances(self, name):
        return {one["InstanceId"] for one in self.group(name)["Instances"]}

    def test_an_annotated_node_is_drained_workloads_first_and_replaced(self):
        node, instance = self.worlds.node("web")
        watch = ["timeout", "60", "kubectl", "get", "pods", "--all-namespaces", "--field-selector", f"spec.nodeName={node}"]
        watch += ["--watch", "--output-watch-events", "--output", "json"]
        with subprocess.Popen(watch, env=self.worlds.environment, stdout=subprocess.PIPE, text=True) as watching:
            events = documents(watching.stdout)
            running = {pod_of(next(events))}
            self.worlds.run(f"kubectl annotate node {node} ebbtide/scale-in=replace")
            for event in events:
                name, is_daemon = pod_of(event)
                if is_daemon and (event["type"] == "DELETED" or "deletionTimestamp" in event["object"]["metadata"]):
                    break
                has_exited = event["type"] == "DELETED" or event["object"]["status"]["phase"] in ("Succeeded", "Failed")
                (running.discard if has_exited else running.add)((name, is_daemon))
            watching.kill()
        left = [name for name, is_daemon in running if not is_daemon]
        self.assertEqual(left, [], "no daemon was asked before the last workload had exited")
        until("the instance is released", lambda: self.state(instance) in ("Terminating:Proceed", "shutting-down", "terminated"))

    def test_an_instance_that_the_group_ends_is_held_until_its_workloads_have_left(self):
        node, instance = self.worlds.node("web")
        before = self.instances("web")
        self.worlds.run(
            "aws autoscaling terminate-instance-in-auto-scaling-group --no-should-decrement-desired-capacity"
            f" --instance-id {instance}"
        )
        self.assertIn(self.state(instance), ("Terminating", "Terminating:Wait"))
        until("its workloads leave", lambda: "SchedulingDisabled" in self.worlds.run(f"kubectl get node {node}"))
        until("it is let go", lambda: self.state(instance) in ("Terminating:Proceed", "shutting-down", "terminated"))
        self.assertEqual(workloads(self.worlds, node), [], "before that")
        until("another is launched", lambda: self.instances("web") - before)

    def test_kubectl_drains_a_node_by_itself(self):
        node, _ = self.worlds.node("batch")
        told = self.worlds.run(f"kubectl drain {node} --ignore-daemonsets --delete-emptydir-data")
        self.assertIn(f"node/{node} drained", told)
        self.assertEqual(workloads(self.worlds, node), [])
        self.worlds.run(f"kubectl uncordon {node}")

    def test_a_pod_that_is_deleted_is_replaced(self):
        pod = self.worlds.run("kubectl get pods --selector app=shop --output name").split()[0]
        self.worlds.run(f"kubectl delete {pod}")
        ready = lambda: self.worlds.run("kubectl get replicaset shop --output jsonpath={.status.readyReplicas}")
        until("another runs", lambda: ready() == "3")

    def test_the_size_that_was_set_brings_nodes_and_they_are_filled(self):
        self.assertGreaterEqual(self.group("batch")["DesiredCapacity"], 4)
        ready = lambda: self.worlds.run("kubectl get replicaset render --output jsonpath={.status.readyReplicas}")
        until("all run", lambda: ready() == "4")

    def test_a_notice_in_the_queue_is_obeyed(self):
        queue = self.sqs.get_queue_url(QueueName="ebbtide")["QueueUrl"]
        self.assertEqual(queue, self.worlds.environment["EBBTIDE_QUEUE_URL"])
        node, instance = self.worlds.node("web")
        notice = {
            "version": "0",
            "id": "12345678-1234-1234-1234-123456789012",
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "source": "aws.ec2",
            "account": "123456789012",
            "time": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": "us-east-1",
            "resources": [f"arn:aws:ec2:us-east-1:123456789012:instance/{instance}"],
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        }
        self.sqs.send_message(QueueUrl=queue, MessageBody=json.dumps(notice))
        cause = lambda: [one["cause"] for one in self.status()["scaleIns"] if one["node"] == node]
        until("the node is drained", lambda: cause() == ["spot-interruption"])
        until("the message is deleted", lambda: self.waiting_messages(queue) == 0)

    def waiting_messages(self, queue):
        told = self.sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return int(told["ApproximateNumberOfMessages"]) + int(told["ApproximateNumberOfMessagesNotVisible"])

def documents(stream):
    """The JSON documents of a stream, each as soon as it is whole."""
    text, decoder = "", json.JSONDecoder()
    for line in stream:
        text += line
        try:
            document, end = decoder.raw_decode(text)
        except ValueError:
            continue
        text = text[end:].lstrip()
        yield document


def pod_of(event):
    """The name of an event's pod, and whether a DaemonSet controls it."""
    return event["object"]["metadata"]["name"], daemon(event["object"])


def daemon(pod):
    return any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", []))


def workloads(worlds, node):
    pods = worlds.json(f"kubectl get pods --all-namespaces --field-selector spec.nodeName={node}")["items"]
    return [pod["metadata"]["name"] for pod in pods if not daemon(pod)]
