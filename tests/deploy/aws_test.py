"""What is for AWS: the same rights, rules and hooks in JSON, CloudFormation, Terraform and the documents."""

import json
import re
import subprocess
import unittest

import hcl2
import yaml

from render import DEPLOY, text

AWS = DEPLOY / "aws"
TEMPLATE = AWS / "cloudformation.yaml"
TERRAFORM = sorted((AWS / "terraform").glob("*.tf"))

# As many characters a name has at AWS.
LONGEST = {"queue": 80, "role": 64, "rule": 64, "policy": 128}

# What only a flag needs, with the condition that CloudFormation has for it.
OPTIONAL = {"load-balancers": "MayReadTargetGroups", "manage-hooks": "MayPutHooks", "prices": "MayReadPrices", "retention": "MaySetRetention"}


class Intrinsics(yaml.SafeLoader):
    """Reads !Ref X as {"Ref": X}, and !Anything X as {"Fn::Anything": X}."""


def intrinsic(loader, tag, node):
    read = {
        yaml.ScalarNode: loader.construct_scalar,
        yaml.SequenceNode: lambda node: loader.construct_sequence(node, deep=True),
        yaml.MappingNode: lambda node: loader.construct_mapping(node, deep=True),
    }
    return {tag if tag == "Ref" else f"Fn::{tag}": read[type(node)](node)}


Intrinsics.add_multi_constructor("!", intrinsic)


def template():
    return yaml.load(TEMPLATE.read_text(), Loader=Intrinsics)


def resolved(value, given):
    """A value of the template with these parameters, by as many intrinsic functions as the tag of groups needs."""
    match value:
        case {"Ref": name}:
            return given[name]
        case {"Fn::Sub": [source, variables]}:
            return resolved({"Fn::Sub": source}, given | {name: resolved(inner, given) for name, inner in variables.items()})
        case {"Fn::Sub": source}:
            return re.sub(r"\$\{(.*?)\}", lambda found: given[found[1]], source)
        case {"Fn::If": [condition, yes, no]}:
            return resolved(yes if resolved(template()["Conditions"][condition], given) else no, given)
        case {"Fn::Not": [inner]}:
            return not resolved(inner, given)
        case {"Fn::And": inner}:
            return all(resolved(one, given) for one in inner)
        case {"Fn::Condition": name}:
            return resolved(template()["Conditions"][name], given)
        case {"Fn::Join": [glue, {"Fn::Split": [at, inner]}]}:
            return glue.join(resolved(inner, given).split(at))
        case {"Fn::Equals": [one, other]}:
            return resolved(one, given) == resolved(other, given)
    return value


def policies():
    """The policies in deploy/aws/iam by name."""
    return {path.stem: json.loads(path.read_text()) for path in (AWS / "iam").glob("*.json")}


def documented_rules():
    """The patterns of EventBridge in docs/notices.md."""
    [block] = [block for block in re.findall(r"```json\n(.*?)```", text("docs/notices.md"), re.DOTALL) if "detail-type" in block]
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(block.rstrip()):
        pattern, at = decoder.raw_decode(block, at)
        found.append(pattern)
        at += len(block[at:]) - len(block[at:].lstrip())
    return found


def plain(value):
    """A value of Terraform's as the parser gives it, without the quotes around its texts."""
    if isinstance(value, dict):
        return {plain(key): plain(inner) for key, inner in value.items() if not str(key).startswith("__")}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.strip('"') if isinstance(value, str) else value


def terraform():
    """All blocks of the module: type, labels, body."""
    for path in TERRAFORM:
        with path.open() as file:
            for kind, blocks in hcl2.load(file).items():
                for block in blocks if isinstance(blocks, list) else []:
                    yield kind, plain(block)


def misformed(source):
    """Lines that `terraform fmt` would write otherwise: indentation of two by brackets, `=` of neighbours in one column."""
    wrong, depth, columns = [], 0, []
    for number, line in enumerate(source.splitlines(), 1):
        bare = re.sub(r'"(\\.|[^"\\])*"', '""', line.split(" # ")[0]).strip()
        if bare.startswith("#"):
            bare = ""
        closing = len(re.match(r"[\])}]*", bare).group())
        # fmt indents once for all brackets that a line opens.
        if line != line.rstrip() or "\t" in line or (bare and indent(line) != 2 * (depth - min(closing, 1))):
            wrong.append(number)
        depth += max(-1, min(1, sum(map(bare.count, "[{(")) - sum(map(bare.count, "])}"))))
        attribute = re.match(r"\s*(\S+|\(.*?\)|\"[^\"]*\")(\s+)= ", line)
        if attribute and not bare.endswith(("[", "{", "(")):
            columns.append((number, attribute.end()))
            continue
        wrong += uneven(columns)
        columns = []
    return sorted({*wrong, *uneven(columns)})


def uneven(columns):
    return [number for number, _ in columns] if len({column for _, column in columns}) > 1 else []


def indent(line):
    return len(line) - len(line.lstrip(" "))


class CloudFormation(unittest.TestCase):
    def test_cfn_lint_finds_nothing(self):
        found = subprocess.run(["cfn-lint", str(TEMPLATE)], capture_output=True, text=True)
        self.assertEqual((found.returncode, found.stdout + found.stderr), (0, ""))

    def test_the_rights_are_those_of_the_files(self):
        resources = template()["Resources"]
        found = {}
        for resource in resources.values():
            if isinstance(resource, dict) and resource["Type"] == "AWS::IAM::RolePolicy":
                name = resolved(resource["Properties"]["PolicyName"], {"ClusterName": "blue"}).removeprefix("ebbtide-blue-")
                found[name] = resource["Properties"]["PolicyDocument"]
                self.assertEqual(resource.get("Condition"), OPTIONAL.get(name), name)
        unset = template()["Parameters"]["GroupTag"]["Default"]
        for given, tag in ((unset, "k8s.io/cluster-autoscaler/blue"), ("example.org/team", "example.org/team")):
            parameters = {"ClusterName": "blue", "GroupTag": given}
            # There the tag and the queue are known.
            wanted = {name: json.loads(json.dumps(policy).replace("k8s.io/cluster-autoscaler/enabled", tag)) for name, policy in policies().items()}
            [statement] = wanted["queue"]["Statement"]
            self.assertEqual(statement["Resource"], "arn:*:sqs:*:*:ebbtide*")
            statement["Resource"] = {"Fn::GetAtt": "Queue.Arn"}
            texts = {name: json.loads(resolved(document, parameters)) for name, document in found.items() if "Fn::Sub" in document}
            self.assertEqual(found | texts, wanted)

    def test_no_name_is_too_long_or_has_dots_where_aws_takes_none(self):
        cluster = template()["Parameters"]["ClusterName"]
        for name in ("blue", "blue.example.com", cluster["MaxLength"] * "a"):
            self.assertRegex(name, cluster["AllowedPattern"])
            for resource in template()["Resources"].values():
                properties = resource["Properties"] if isinstance(resource, dict) else {}
                queue, policy = (resolved(properties.get(key, "a"), {"ClusterName": name}) for key in ("QueueName", "PolicyName"))
                self.assertRegex(queue, rf"^[A-Za-z0-9_-]{{1,{LONGEST['queue']}}}$")
                self.assertLessEqual(len(policy), LONGEST["policy"])
        # Rules and the role have none here, so that CloudFormation makes one that fits.
        for resource in template()["Resources"].values():
            if isinstance(resource, dict) and resource["Type"] in ("AWS::Events::Rule", "AWS::IAM::Role"):
                self.assertEqual({"Name", "RoleName"} & resource["Properties"].keys(), set())

    def test_a_role_that_is_there_already_gets_the_rights_and_nothing_of_eks_is_made(self):
        resources = template()["Resources"]
        for provider, role, makes, associates in (("", "", True, True), ("oidc", "", True, False), ("", "nodes.blue.example.com", False, False)):
            given = {"ClusterName": "blue", "OidcProvider": provider, "RoleName": role}
            self.assertRegex(role, template()["Parameters"]["RoleName"]["AllowedPattern"])
            for name, wanted in (("Role", makes), ("Association", associates)):
                self.assertIs(resolved({"Fn::Condition": resources[name]["Condition"]}, given), wanted, (name, given))
            roles = {
                resolved(resource["Properties"]["RoleName"], given | {"Role": "our own"})
                for resource in resources.values()
                if isinstance(resource, dict) and resource["Type"] == "AWS::IAM::RolePolicy"
            }
            self.assertEqual(roles, {role or "our own"})

    def test_no_tag_of_groups_ends_the_text_that_it_is_put_into(self):
        allowed = re.compile(template()["Parameters"]["GroupTag"]["AllowedPattern"])
        for tag in ("", "k8s.io/cluster-autoscaler/blue", "kubernetes.io/cluster/blue", "aws:autoscaling:groupName"):
            self.assertRegex(tag, allowed)
        for tag in ('a"', "a\\", "${a}", "a*", "a b", 129 * "a"):
            self.assertNotRegex(tag, allowed)

    def test_rules_are_those_of_the_documents_and_they_alone_write_to_the_queue(self):
        resources = template()["Resources"]
        rules = {name: thing for name, thing in resources.items() if thing and isinstance(thing, dict) and thing["Type"] == "AWS::Events::Rule"}
        self.assertEqual([rule["Properties"]["EventPattern"] for rule in rules.values()], documented_rules())
        for rule in rules.values():
            self.assertEqual([target["Arn"] for target in rule["Properties"]["Targets"]], [{"Fn::GetAtt": "Queue.Arn"}])
        [statement] = resources["QueuePolicy"]["Properties"]["PolicyDocument"]["Statement"]
        self.assertEqual(statement["Principal"], {"Service": "events.amazonaws.com"})
        sources = statement["Condition"]["ArnEquals"]["aws:SourceArn"]
        self.assertEqual(sources, [{"Fn::GetAtt": f"{name}.Arn"} for name in rules])


class Terraform(unittest.TestCase):
    def test_the_rights_are_those_of_the_files(self):
        source = (AWS / "terraform" / "role.tf").read_text()
        always = {name for name in policies() if name not in OPTIONAL}
        [listed] = re.findall(r"setunion\(\s*\[(.*?)\]", source)
        self.assertEqual(set(json.loads(f"[{listed}]")), always)
        self.assertIn('var.manage_lifecycle_hooks == "off" ? [] : ["manage-hooks"]', source)
        self.assertIn('var.manage_lifecycle_hooks == "retain" ? ["retention"] : []', source)
        self.assertIn('var.wait_for_load_balancers ? ["load-balancers"] : []', source)
        self.assertIn('var.prices ? ["prices"] : []', source)
        self.assertIn('file("${path.module}/../iam/${each.key}.json")', source)
        self.assertIn('group_tag = coalesce(var.group_tag, "k8s.io/cluster-autoscaler/${var.cluster_name}")', source)
        self.assertRegex(source, r'"k8s.io/cluster-autoscaler/enabled",\s+local.group_tag,')
        # What is put in the place of something finds it.
        for replaced, policy in (("k8s.io/cluster-autoscaler/enabled", "size"), ("arn:*:sqs:*:*:ebbtide*", "queue")):
            self.assertIn(f'"{replaced}"', source)
            self.assertIn(replaced, (AWS / "iam" / f"{policy}.json").read_text())

    def test_rules_are_those_of_the_documents_and_they_alone_write_to_the_queue(self):
        [notices] = [block["notices"] for kind, block in terraform() if kind == "locals" and "notices" in block]
        self.assertEqual(list(notices.values()), documented_rules())
        source = (AWS / "terraform" / "queue.tf").read_text()
        self.assertEqual(source.count("Principal"), 1)
        self.assertIn('Principal = { Service = "events.amazonaws.com" }', source)
        self.assertIn('ArnEquals = { "aws:SourceArn" = [for rule in aws_cloudwatch_event_rule.notices : rule.arn] }', source)

    def test_no_name_is_too_long(self):
        source = (AWS / "terraform" / "queue.tf").read_text()
        [longest] = re.findall(r'regex\("\^\[0-9A-Za-z_-\]\{1,(\d+)\}\$", local.name\)', source)
        [notices] = [block["notices"] for kind, block in terraform() if kind == "locals" and "notices" in block]
        for ending, what in (("", "role"), ("-dead-letters", "queue"), *((f"-{name}", "rule") for name in notices), *((f"-{name}", "policy") for name in policies())):
            self.assertLessEqual(int(longest) + len(ending), LONGEST[what], ending)
        for made in ("local.name", '"${local.name}-dead-letters"', '"${local.name}-${each.key}"'):
            self.assertRegex(source, rf"\sname\s+= {re.escape(made)}\n")

    def test_everything_that_is_given_and_told_is_described(self):
        found = 0
        for kind, block in terraform():
            if kind in ("variable", "output"):
                [(name, body)] = block.items()
                self.assertTrue(body.get("description"), name)
                found += 1
        self.assertGreater(found, 10)

    def test_the_files_are_as_terraform_fmt_writes_them(self):
        for path in TERRAFORM:
            self.assertEqual(misformed(path.read_text()), [], path.name)

    def test_a_file_that_terraform_fmt_would_change_is_found(self):
        good = 'resource "a" "b" {\n  x   = 1\n  abc = "2"\n\n  list = [\n    1,\n  ]\n}\n'
        self.assertEqual(misformed(good), [])
        for wrong in (good.replace("x   =", "x ="), good.replace("    1,", "   1,"), good.replace("1\n", "1 \n"), good.replace("  list", "\tlist")):
            self.assertNotEqual(misformed(wrong), [], wrong)


class Both(unittest.TestCase):
    def test_the_queue_and_its_dead_letters_are_the_same(self):
        resources = template()["Resources"]
        blocks = [block for kind, block in terraform() if kind == "resource"]
        queues = {name: body for block in blocks for name, body in block.get("aws_sqs_queue", {}).items()}
        for ours, theirs in (("notices", "Queue"), ("dead_letters", "DeadLetters")):
            properties = resources[theirs]["Properties"]
            self.assertEqual(queues[ours]["message_retention_seconds"], properties["MessageRetentionPeriod"])
            self.assertIs(queues[ours]["sqs_managed_sse_enabled"], properties["SqsManagedSseEnabled"])
        self.assertIn("maxReceiveCount     = 1000", (AWS / "terraform" / "queue.tf").read_text())
        self.assertEqual(resources["Queue"]["Properties"]["RedrivePolicy"]["maxReceiveCount"], 1000)
