#!/usr/bin/env python3
"""Saves files with the torch that is installed, and expected.json that says what is in them.

    make_files.py DIRECTORY

expected.json: file → {"xser": bool, "tensors": {name: {dtype, shape, sha256}}, "warnings": [part of a warning]}, or
file → {"error": kind, "says": part of the message, "tensor": name}. The SHA-256 is of the C-ordered bytes.
"""

import argparse
import collections
import datetime
import hashlib
import inspect
import io
import json
import os
import pathlib
import struct
import sys

import numpy
import torch

from support import TensorReference, install_tensor_reference, raw_bytes

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
          torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
# What torch 1.13 does not have yet.
DTYPES += [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64")
           if hasattr(torch, name)]


def describe(tensors):
    return {name: {"dtype": str(tensor.dtype).split(".")[1], "shape": list(tensor.shape),
                   "sha256": hashlib.sha256(raw_bytes(tensor)).hexdigest()} for name, tensor in tensors.items()}


class Maker:
    def __init__(self, directory):
        self.directory = directory
        self.expected = {}

    def path(self, name):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def save(self, name, value, tensors=None, warnings=(), **options):
        torch.save(value, self.path(name), **options)
        self.holds(name, value if tensors is None else tensors, warnings)

    def holds(self, name, tensors, warnings=(), xser=False):
        self.expected[name] = {"xser": xser, "tensors": describe(tensors), "warnings": list(warnings)}

    def refuse(self, name, value, kind, says, tensor="", **options):
        torch.save(value, self.path(name), **options)
        self.expected[name] = {"error": kind, "says": says, "tensor": tensor}


def tensor_of(dtype, *shape):
    values = torch.arange(1, 1 + int(numpy.prod(shape)), dtype=torch.float32).reshape(shape)
    return (values % 2 == 0) if dtype == torch.bool else values.to(dtype)


def views():
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    return collections.OrderedDict(
        transposed=base.transpose(0, 2), sliced=base[1:, 1:3, ::2], column=base[:, :, 3], diagonal=base[0].diagonal(),
        expanded=torch.arange(4.0).reshape(4, 1).expand(4, 3), scalar=base[2, 3, 4], empty=torch.zeros(0, 7),
        empty_view=base[3:, :, 1], ones=torch.arange(3.0).as_strided((1, 3, 1), (77, 1, 9)), whole=base,
        unfolded=torch.arange(6.0).unfold(0, 3, 1))


def every_dtype():
    return {str(dtype).split(".")[1] + ".weight": tensor_of(dtype, 3, 5) for dtype in DTYPES}


def state_dicts(maker):
    maker.save("every_dtype.pt", every_dtype())
    maker.save("views.pt", views())
    tied = tensor_of(torch.bfloat16, 4, 6)
    maker.save("tied.pt", {"embed.weight": tied, "lm_head.weight": tied, "bias": tied[1]})
    maker.save("slice.pt", {"weight": torch.arange(100000.0)[7:9]}, warnings=["that no tensor uses"])
    maker.save("empty.pt", {})
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    maker.save("module_state.pt", model.state_dict())
    maker.save("parameters.pt", dict(model.named_parameters()))
    marked = torch.nn.Parameter(tensor_of(torch.float32, 2, 2))
    marked.tensor_model_parallel = True
    attributed = tensor_of(torch.float32, 2)
    attributed.partition_dim = 0
    maker.save("attributes.pt", {"marked": marked, "attributed": attributed})
    maker.save("defaultdict.pt", collections.defaultdict(list, a=tied, b=tied * 2))
    maker.save("subdir/name with spaces.bin", {"ü.weight": tied})
    stream = io.BytesIO()
    torch.save({"a": tied}, stream)
    maker.path("archive.pt").write_bytes(stream.getvalue())
    maker.holds("archive.pt", {"a": tied})
    many = {f"layers.{i}.weight": torch.full((2,), float(i)) for i in range(700)}
    maker.save("many.pt", many)
    for protocol in (1, 3, 4, 5):
        maker.save(f"protocol{protocol}.pt", {**every_dtype(), **views()}, pickle_protocol=protocol)


def streams(maker):
    old = {"_use_new_zipfile_serialization": False}
    typed = {name: tensor for name, tensor in every_dtype().items()}
    maker.save("stream_dtypes.pt", typed, **old)
    maker.save("stream_views.pt", views(), **old)
    maker.save("stream_empty.pt", {}, **old)
    many = {f"layers.{i}.weight_{'x' * 900}": torch.full((2,), float(i)) for i in range(1500)}
    maker.save("stream_longer_than_a_window.pt", many, **old)
    for protocol in (1, 4):
        maker.save(f"stream_protocol{protocol}.pt", views(), pickle_protocol=protocol, **old)


def checkpoints(maker):
    weights = {"a.weight": tensor_of(torch.float32, 2, 3), "a.bias": tensor_of(torch.float32, 2)}
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    took = 'read the state dict under "%s"'
    maker.save("checkpoint.pt", {"epoch": 3, "model": weights, "optimizer": optimizer.state_dict(),
                                 "rng_state": torch.get_rng_state(), "numpy_rng": numpy.random.get_state()},
               tensors=weights, warnings=[took % "model", "epoch, optimizer, rng_state"])
    maker.save("lightning.ckpt", {"state_dict": weights, "hparams": {"lr": 0.1}, "date": datetime.datetime.now()},
               tensors=weights, warnings=[took % "state_dict", "hparams"])
    others = {"args": argparse.Namespace(lr=1), "path": pathlib.PurePosixPath("a")}
    maker.save("deepspeed.pt", {"module": weights, **others},
               tensors=weights, warnings=[took % "module", "args, path"])
    others = {"a._extra_state": b"\0\1", "step": 2, "none": None, "np": numpy.float32(1)}
    maker.save("extra_state.pt", {**weights, **others},
               tensors=weights, warnings=["a._extra_state, step, none, np"])


def refusals(maker):
    weight = tensor_of(torch.float32, 2, 2)
    maker.refuse("module.pt", torch.nn.Linear(2, 2), "unsupported", "torch.nn.modules.linear.Linear")
    maker.refuse("complex128.pt", {"z": weight.to(torch.complex128)}, "unsupported", "complex128", "z")
    maker.refuse("sparse.pt", {"s": weight.to_sparse()}, "unsupported", "sparse", "s")
    quantised = torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8)
    maker.refuse("quantised.pt", {"q": quantised}, "unsupported", "quantised", "q")
    # Protocol 0 has persistent ids as text only; torch cannot load what it then saves.
    maker.refuse("protocol0.pt", {"w": weight}, "bad input", "not described as a storage", "w", pickle_protocol=0)
    if "metadata" in inspect.signature(torch._utils._rebuild_tensor_v2).parameters:  # torch 1.13 forgets the bit
        maker.refuse("conjugate.pt", {"c": weight.to(torch.complex64).conj()}, "unsupported", "conjugate", "c")
    maker.refuse("stream_complex128.pt", {"z": weight.to(torch.complex128)}, "unsupported", "complex128", "z",
                 _use_new_zipfile_serialization=False)

    class Runs:
        def __reduce__(self):
            return os.system, ("true",)

    runs = {"w": weight, "x": Runs()}
    maker.refuse("runs_code.pt", runs, "bad input", "posix.system")
    maker.refuse("stream_runs_code.pt", runs, "bad input", "posix.system", _use_new_zipfile_serialization=False)
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(maker.path("script.pt")))
    maker.expected["script.pt"] = {"error": "unsupported", "says": "TorchScript", "tensor": ""}


def xser(maker):
    """As torch_xla.utils.serialization.save writes it."""
    install_tensor_reference()
    tensors = {"a": tensor_of(torch.bfloat16, 2, 3), "b": tensor_of(torch.float32, 4, 5).t()}
    references = {name: TensorReference(tid) for tid, name in enumerate(tensors)}
    references["tied"] = TensorReference(0)
    on_cpu = tensor_of(torch.int64, 3)
    path = maker.path("xser/checkpoint")
    torch.save({"model": {**references, "on_cpu": on_cpu}, "step": 1}, path)
    for tid, tensor in enumerate(tensors.values()):
        torch.save(tensor, maker.path(f"xser/checkpoint.tensors/tensor_{tid}.pt"))
    torch.save({tid: {"dtype": tensor.dtype, "shape": tensor.shape, "expert_model_parallel": tid == 1}
                for tid, tensor in enumerate(tensors.values())}, maker.path("xser/checkpoint.info.pt"))
    maker.holds("xser/checkpoint", {**tensors, "tied": tensors["a"], "on_cpu": on_cpu},
                ['read the state dict under "model"', "state dict: step"], xser=True)


def large(maker):
    """An archive of more than 4 GiB with zip64 records, nearly all of it a hole in the file."""
    elems = 2**32 + 4096
    view = bytes([1, 2, 3, 4])
    offset = 2**32 + 100

    def long1(value):
        raw = value.to_bytes(8, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    pickled = (b"\x80\x02}" + text("far") + b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") +
               b"ctorch\nByteStorage\n" + text("0") + text("cpu") + long1(elems) + b"tQ" + long1(offset) +
               b"K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs.")
    directory = b""
    with open(maker.path("larger_than_4_GiB.pt"), "wb") as file:
        for name, size, content in (("large/data.pkl", len(pickled), pickled), ("large/data/0", elems, None),
                                    ("large/version", 2, b"3\n")):
            at = file.tell()
            sizes = struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)
            extra = struct.pack("<HHQQ", 1, 16, size, size)
            file.write(struct.pack("<IHHHHHI", 0x04034B50, 45, 0, 0, 0, 0, 0) + sizes +
                       struct.pack("<HH", len(name), len(extra)) + name.encode() + extra)
            if content is None:
                data_at = file.tell()
                file.seek(data_at + offset)
                file.write(view)
                file.seek(data_at + size)
            else:
                file.write(content)
            extra = struct.pack("<HHQQQ", 1, 24, size, size, at)
            directory += (struct.pack("<IHHHHHHI", 0x02014B50, 45, 45, 0, 0, 0, 0, 0) + sizes +
                          struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, 0, 0xFFFFFFFF) +
                          name.encode() + extra)
        directory_at = file.tell()
        file.write(directory)
        end64_at = file.tell()
        file.write(struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 3, 3, len(directory), directory_at))
        file.write(struct.pack("<IIQI", 0x07064B50, 0, end64_at, 1))
        file.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 3, 3, len(directory), 0xFFFFFFFF, 0))
    maker.holds("larger_than_4_GiB.pt", {"far": torch.tensor(list(view), dtype=torch.uint8)},
                ["that no tensor uses"])


def main():
    maker = Maker(pathlib.Path(sys.argv[1]))
    for make in (state_dicts, streams, checkpoints, refusals, xser, large):
        make(maker)
    (maker.directory / "expected.json").write_text(json.dumps(maker.expected, indent=1))


main()
