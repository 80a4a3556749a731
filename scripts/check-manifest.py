#!/usr/bin/env python3
"""Checks the tensors of safetensors files against a reshard.manifest.json, without reshard.

    scripts/check-manifest.py reshard.manifest.json MODEL_DIR_OR_FILE...

The digest of a tensor is over its elements in C order, little-endian, as safetensors has them: see tensor_digest().
Leaves of 4-bit dtypes, which have multiples of eight rows, are not known here.
"""

import hashlib
import json
import pathlib
import struct
import sys

LEAF_BYTES = 4 << 20


def tensor_digest(data, shape):
    """Of at most 4 MiB, its SHA-256. Else it is cut into leaves, and this is the SHA-256 of their SHA-256s: along the
    first dim of which one index (a row) has at most 4 MiB, a leaf has as many rows as fit 4 MiB, the last the rest."""
    row, parts = len(data), 1  # parts: what the dims before the rows' make, one index of each
    for size in shape:
        rows, row = size, row // max(size, 1)
        if row <= LEAF_BYTES:
            break
        parts *= size
    if not shape or len(data) == 0:
        return hashlib.sha256(data).hexdigest(), []
    whole, leaf = rows * row, LEAF_BYTES // row * row
    begins = [part * whole + at for part in range(parts) for at in range(0, whole, leaf)]
    ends = [min(begin + leaf, begin // whole * whole + whole) for begin in begins]
    leaves = [hashlib.sha256(data[begin:end]).digest() for begin, end in zip(begins, ends)]
    if len(leaves) == 1:
        return leaves[0].hex(), []
    return hashlib.sha256(b"".join(leaves)).hexdigest(), [leaf.hex() for leaf in leaves]


def tensors_of(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        begin = file.tell()
        for name, tensor in header.items():
            if name == "__metadata__":
                continue
            first, last = tensor["data_offsets"]
            file.seek(begin + first)
            yield name, tensor["dtype"], tensor["shape"], file.read(last - first)


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    manifest = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    expected = {tensor["name"]: tensor for tensor in manifest["tensors"]}
    paths = [pathlib.Path(argument) for argument in sys.argv[2:]]
    files = [file for path in paths for file in (sorted(path.glob("*.safetensors")) if path.is_dir() else [path])]
    if not files:
        print(f"no safetensors files in {', '.join(map(str, paths))}", file=sys.stderr)
        return 2
    wrong = 0
    count = len(expected)
    for file in files:
        for name, dtype, shape, data in tensors_of(file):
            tensor = expected.pop(name, None)
            digest, leaves = tensor_digest(data, shape)
            if tensor is None:
                print(f"not in the manifest: {name}")
            elif [dtype, shape] != [tensor["dtype"], tensor["shape"]]:
                print(f"other shape or dtype: {name}")
            elif [digest, leaves] != [tensor["sha256"], tensor.get("leaves", [])]:
                print(f"differs: {name}")
            else:
                continue
            wrong += 1
    # Of a training run, what is beside the model is in no safetensors file.
    beside = [name for name, tensor in expected.items() if tensor.get("role", "parameter") != "parameter"]
    for name in expected.keys() - set(beside):
        print(f"only in the manifest: {name}")
    wrong += len(expected) - len(beside)
    if beside:
        print(f"not compared, as they are beside the model: {len(beside)} entries")
    print(f"{'different' if wrong else 'same'}: {wrong or count - len(beside)} tensors")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
