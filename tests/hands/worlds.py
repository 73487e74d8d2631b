"""The worlds of `ebbtide simulate --listen`, for as long as a test class runs."""

import json
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

# Of everything that is waited for here; the worlds take their real time.
LIMIT = 60


class Worlds:
    """Both worlds, the program on them, and the environment that reaches them."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        files, told = Path(self.folder.name) / "worlds", Path(self.folder.name) / "told"
        self.log = open(Path(self.folder.name) / "log", "w+")
        with open(told, "w") as out:
            self.process = subprocess.Popen(["ebbtide", "simulate", "--listen", files], stdout=out, stderr=self.log)
        try:
            until("the worlds are up", lambda: "Ctrl-C" in told.read_text() or self.process.poll() is not None)
        except AssertionError:
            self.process.kill()
            raise
        self.greeting = told.read_text()
        self.admin = re.search(r"(http://\S+)/status", self.greeting)[1]
        self.shell = files / "env"
        told = subprocess.run(["bash", "-c", '. "$1" && env -0', "-", self.shell], capture_output=True, text=True, check=True)
        self.environment = dict(one.split("=", 1) for one in told.stdout.split("\0") if one)

    def stop(self):
        """Ctrl-C. Returns the exit code, what is left of the files, and the log."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=LIMIT)
        left = self.shell.parent.exists()
        self.log.seek(0)
        log = self.log.read()
        self.log.close()
        self.folder.cleanup()
        return code, left, log

    def bash(self, line, cwd=None, timeout=LIMIT):
        """What a command line prints, and its exit code."""
        told = subprocess.run(
            ["bash", "-c", line],
            env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        )
        return told.returncode, told.stdout + told.stderr

    def run(self, line, **options):
        """What a command line prints; it succeeds."""
        code, text = self.bash(line, **options)
        assert code == 0, f"{line}: {code}\n{text}"
        return text

    def json(self, line):
        return json.loads(self.run(f"{line} --output json"))

    def node(self, pool):
        """A node of this group that is not about to leave, and its instance."""
        return until(f"a node of {pool} stays", lambda: self.any_node(f"pool={pool}"))

    def any_node(self, selector="pool"):
        """A node that is not about to leave, and its instance, if there is one."""
        for node in self.json(f"kubectl get nodes --selector {selector}")["items"]:
            if not node["spec"].get("unschedulable"):
                return node["metadata"]["name"], node["spec"]["providerID"].rsplit("/", 1)[1]


def until(what, holds):
    """What `holds` returns once it is true."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {LIMIT} s: {what}")
