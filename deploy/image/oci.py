#!/usr/bin/env python3
"""Writes the image as an OCI archive: `oci.py OUT ROOTS ARCH…`, with OUT/ebbtide-ARCH in it, to OUT/ebbtide.oci.tar.

The same input gives the same bytes: files in a fixed order, of the time SOURCE_DATE_EPOCH, owned by root.
https://github.com/opencontainers/image-spec
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time
import tomllib
from pathlib import Path

OCI = "application/vnd.oci.image"
EPOCH = int(os.environ["SOURCE_DATE_EPOCH"])
CREATED = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH))
# Nobody's: no file belongs to it, and it needs no /etc/passwd.
USER = "65532:65532"
# PATH, so that `kubectl exec POD -- ebbtide status` finds it, and how glibc keeps memory: docs/performance.md.
ENVIRONMENT = (Path(__file__).parent / "environment").read_text().split()


def tar(files):
    """A tar of (name, content, mode), in this order; folders where content is None."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, mode in files:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = EPOCH, mode
            if content is None:
                info.type = tarfile.DIRTYPE
            else:
                info.size = len(content)
            archive.addfile(info, content and io.BytesIO(content))
    return buffer.getvalue()


def main(out, roots, architectures):
    package = tomllib.loads(Path("Cargo.toml").read_text())["package"]
    labels = {
        "org.opencontainers.image.title": package["name"],
        "org.opencontainers.image.description": package["description"],
        "org.opencontainers.image.version": package["version"],
        "org.opencontainers.image.licenses": package["license"],
        "org.opencontainers.image.created": CREATED,
    }
    blobs = {}

    def blob(kind, content, **more):
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content), **more}

    def document(kind, value, **more):
        return blob(kind, json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), **more)

    manifests = []
    for architecture in architectures:
        files = [
            ("etc", None, 0o755),
            ("etc/ssl", None, 0o755),
            ("etc/ssl/certs", None, 0o755),
            ("etc/ssl/certs/ca-certificates.crt", Path(roots).read_bytes(), 0o644),
            ("ebbtide", (out / f"ebbtide-{architecture}").read_bytes(), 0o755),
        ]
        plain = tar(files)
        layer = blob("layer.v1.tar+gzip", gzip.compress(plain, compresslevel=9, mtime=0))
        config = document(
            "config.v1+json",
            {
                "architecture": architecture,
                "os": "linux",
                "created": CREATED,
                "config": {
                    "User": USER,
                    "Env": ENVIRONMENT,
                    "Entrypoint": ["/ebbtide"],
                    "Cmd": ["serve"],
                    "Labels": labels,
                },
                "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
                "history": [{"created": CREATED, "created_by": "deploy/image/build.sh"}],
            },
        )
        platform = {"architecture": architecture, "os": "linux"}
        manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": config, "layers": [layer]}
        manifests.append(document("manifest.v1+json", {**manifest, "annotations": labels}, platform=platform))
        print(f"{architecture}: {layer['size'] / 1e6:.1f} MB compressed, {len(plain) / 1e6:.1f} MB in all")

    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": manifests, "annotations": labels}
    name = {"org.opencontainers.image.ref.name": package["version"]}
    top = {"schemaVersion": 2, "manifests": [document("index.v1+json", index, annotations=name)]}
    entries = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}', 0o644), ("index.json", json.dumps(top).encode(), 0o644)]
    entries += [("blobs", None, 0o755), ("blobs/sha256", None, 0o755)]
    entries += [(f"blobs/sha256/{digest}", content, 0o644) for digest, content in sorted(blobs.items())]
    (out / "ebbtide.oci.tar").write_bytes(tar(entries))


main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
