#!/usr/bin/env python3
"""Packs a directory tree that holds bin/reshard as a tarball, a wheel or an OCI image; scripts/release.sh runs it.

The same files, version and time give the same bytes: entries are sorted, belong to root and have that one time.

  scripts/pack.py tarball|wheel|image TREE OUT_FILE --version X.Y.Z --time SECONDS [--summary TEXT] [--tags TAGS]
"""
import argparse
import base64
import gzip
import hashlib
import io
import json
import pathlib
import tarfile
import time
import zipfile

# The binary is a script of the wheel; the schemes of an installation say where pip has put those.
MAIN = '''"""Runs the program as python -m reshard."""
import os
import sys
import sysconfig

site = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
schemes = [s for s in sysconfig.get_scheme_names() if sysconfig.get_path("platlib", s) == site]
folders = [sysconfig.get_path("scripts", s) for s in schemes] + [os.path.join(site, "bin")]  # the last by pip --target
programs = [p for p in (os.path.join(f, "reshard") for f in folders) if os.path.isfile(p)]
if not programs:
    sys.exit("reshard: the program is not in " + ", ".join(folders) + "; try: pip install --force-reinstall reshard")
os.execv(programs[0], [programs[0]] + sys.argv[1:])
'''


def files_of(tree):
    """Yields (path within the tree, bytes, mode) of all files, sorted."""
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        yield path.relative_to(tree).as_posix(), path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644


def tar(files, seconds):
    """An uncompressed tar of files, and of the directories that they are in."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        known = set()

        def add(name, data, mode, kind):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.mode, info.mtime, info.uname, info.gname = kind, len(data), mode, seconds, "root", "root"
            archive.addfile(info, io.BytesIO(data))

        for name, data, mode in files:
            for folder in reversed(pathlib.PurePosixPath(name).parents[:-1]):
                if folder not in known:
                    known.add(folder)
                    add(str(folder), b"", 0o755, tarfile.DIRTYPE)
            add(name, data, mode, tarfile.REGTYPE)
    return buffer.getvalue()


def compress(data):
    return gzip.compress(data, 9, mtime=0)


def tarball(arguments):
    root = arguments.out.name.removesuffix(".tar.gz").replace("-linux-x86_64", "")
    files = [(f"{root}/{name}", data, mode) for name, data, mode in files_of(arguments.tree)]
    return compress(tar(files, arguments.time))


def wheel(arguments):
    info = f"reshard-{arguments.version}.dist-info"
    tags = [part.split(".") for part in arguments.tags.split("-")]
    files = [
        ("reshard/__init__.py", b'"""The program reshard; python -m reshard runs it."""\n', 0o644),
        ("reshard/__main__.py", MAIN.encode(), 0o644),
    ]
    for name, data, mode in files_of(arguments.tree):
        if name == "bin/reshard":
            files.append((f"reshard-{arguments.version}.data/scripts/reshard", data, mode))
        elif name.startswith("share/doc/reshard/licenses/") or name.endswith("/LICENSE"):
            files.append((f"{info}/licenses/{pathlib.PurePosixPath(name).name}", data, mode))
        # No man page and no completions: pip uninstall would leave their directories.
    metadata = f"""Metadata-Version: 2.1
Name: reshard
Version: {arguments.version}
Summary: {arguments.summary}
License: Apache-2.0
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.6
"""
    wheel_file = "Wheel-Version: 1.0\nGenerator: scripts/pack.py\nRoot-Is-Purelib: false\n"
    wheel_file += "".join(f"Tag: {p}-{a}-{o}\n" for p in tags[0] for a in tags[1] for o in tags[2])
    files += [(f"{info}/METADATA", metadata.encode(), 0o644), (f"{info}/WHEEL", wheel_file.encode(), 0o644)]

    def digest(data):
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data, _ in files) + f"{info}/RECORD,,\n"
    files.append((f"{info}/RECORD", record.encode(), 0o644))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name, time.gmtime(arguments.time)[:6])
            entry.external_attr = (0o100000 | mode) << 16
            entry.create_system = 3
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def image(arguments):
    """An OCI image layout of one layer, https://github.com/opencontainers/image-spec, as one uncompressed tar."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(arguments.time))
    blobs = {}

    def add(media_type, data):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    def text(value):
        return json.dumps(value, sort_keys=True, indent=1).encode()

    layer = tar([(f"usr/{name}", data, mode) for name, data, mode in files_of(arguments.tree)], arguments.time)
    labels = {
        "org.opencontainers.image.title": "reshard",
        "org.opencontainers.image.description": arguments.summary,
        "org.opencontainers.image.version": arguments.version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    config = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["reshard"], "Env": ["PATH=/usr/bin:/bin"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "scripts/pack.py image"}],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add("config.v1+json", text(config)),
        "layers": [add("layer.v1.tar+gzip", compress(layer))],
        "annotations": labels,
    }
    entry = add("manifest.v1+json", text(manifest))
    entry["platform"] = {"architecture": "amd64", "os": "linux"}
    entry["annotations"] = {"org.opencontainers.image.ref.name": f"reshard:{arguments.version}"}
    files = dict(blobs)
    files["oci-layout"] = text({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = text(
        {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    )
    return tar([(name, data, 0o644) for name, data in sorted(files.items())], arguments.time)


def main():
    kinds = {"tarball": tarball, "wheel": wheel, "image": image}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--version", required=True)
    parser.add_argument("--time", required=True, type=int, help="time of all entries, in seconds since 1970")
    parser.add_argument("--summary", default="")
    parser.add_argument("--tags", default="py3-none-any", help="of a wheel: PYTHON-ABI-PLATFORM, each a set joined by dots")
    arguments = parser.parse_args()
    arguments.out.write_bytes(kinds[arguments.kind](arguments))


if __name__ == "__main__":
    main()
