"""Runs the image's files in a chroot: `image.py ROOT [EMULATOR]`, with an emulator that is in there too. Fails if the program does not
reach an API server and an AWS by name, over TLS.

What a container gets from outside is here: /etc/hosts, /etc/resolv.conf, a kubeconfig, an operator's authority. `api.example` is in
/etc/hosts, `aws.example` only at a DNS server on loopback. Both answer every request with 503, and write down what they were asked.
"""

import base64
import http.server
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

# Addresses that nobody else on this machine listens at.
DNS, AWS, API = "127.53.0.1", "127.53.0.2", "127.53.0.3"
WITHIN = 60


def certificates(folder):
    """An authority, and a certificate of its for both names."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, stderr=subprocess.DEVNULL)

    (folder / "names").write_text("subjectAltName=DNS:aws.example,DNS:api.example\nextendedKeyUsage=serverAuth\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-days", "2", "-subj", "/CN=authority")
    openssl("req", *key, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=server")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "tls.crt")


def resolve_aws(queries):
    """A DNS server that knows aws.example."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((DNS, 53))

    def run():
        while True:
            query, client = server.recvfrom(4096)
            end, labels = 12, []
            while query[end]:
                labels.append(query[end + 1 : end + 1 + query[end]].decode())
                end += 1 + query[end]
            name, kind = ".".join(labels), struct.unpack(">H", query[end + 1 : end + 3])[0]
            queries.append(name)
            answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(AWS) if kind == 1 else b""
            known = name == "aws.example"
            answer = answer if known else b""
            flags = 0x8180 if known else 0x8183
            counts = struct.pack(">HHHHH", flags, 1, 1 if answer else 0, 0, 0)
            server.sendto(query[:2] + counts + query[12 : end + 5] + answer, client)

    threading.Thread(target=run, daemon=True).start()


def serve(address, folder, asked):
    """An HTTPS server that writes down what it is asked. Returns its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode(errors="replace")
            asked.append(f"{self.command} {self.headers.get('host')}{self.path} {body}")
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *_):
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_):
            """A client that does not take the certificate says so itself."""

    server = Server((address, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def run(root, emulator, aws_port, environment, until):
    """The program, as a container, until that holds. Returns whether it came to that, and what it logged."""
    command = ["chroot", "--userspec=65532:65532", str(root), *emulator, "/ebbtide", "serve", "--nodes=0:1:web", "--region=us-east-1",
               "--kubeconfig=/etc/kubeconfig", f"--endpoint-url=https://aws.example:{aws_port}",
               "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"]
    environment = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_EC2_METADATA_DISABLED": "true", **environment}
    with open(root.parent / "log", "w+") as log:
        program = subprocess.Popen(command, env={**environment, "PATH": os.environ["PATH"]}, stderr=log)
        end = time.monotonic() + WITHIN
        came = False
        while not came and time.monotonic() < end and program.poll() is None:
            time.sleep(0.2)
            came = until((root.parent / "log").read_text())
        program.terminate()
        code = program.wait(timeout=10)
        log.seek(0)
        return came and code == 0, log.read()


def main(root, emulator):
    folder = root.parent
    certificates(folder)
    queries, asked = [], []
    resolve_aws(queries)
    aws, api = serve(AWS, folder, asked), serve(API, folder, asked)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n{API} api.example\n")
    (root / "etc/resolv.conf").write_text(f"nameserver {DNS}\noptions ndots:5 timeout:1\nsearch kube-system.svc.cluster.local\n")
    authority = (folder / "ca.crt").read_bytes()
    (root / "etc/operators.crt").write_bytes(authority)
    (root / "etc/kubeconfig").write_text(f"""\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://api.example:{api}", certificate-authority-data: {base64.b64encode(authority).decode()}}}}}]
users: [{{name: u, user: {{token: t}}}}]
""")

    def has_reached_both(_):
        return any(f"POST aws.example:{aws}/" in a and "DescribeAutoScalingGroups" in a for a in asked) and any(
            a.startswith(f"GET api.example:{api}/api/v1/nodes") for a in asked
        )

    came, log = run(root, emulator, aws, {"SSL_CERT_FILE": "/etc/operators.crt"}, has_reached_both)
    assert came, f"AWS and the API server are not both reached, or it did not stop well:\n{asked}\n{queries}\n{log}"
    assert "aws.example" in queries and "api.example" not in queries, queries
    print("names are found in /etc/hosts and at a DNS server, and TLS goes by an operator's authority")

    asked.clear()
    came, log = run(root, emulator, aws, {}, lambda log: "UnknownIssuer" in log)
    assert came, f"the image's own roots do not refuse a stranger:\n{log}"
    assert not any("aws.example" in a for a in asked), asked
    print("the image's own roots refuse a server of an unknown authority")


main(Path(sys.argv[1]), sys.argv[2:])
