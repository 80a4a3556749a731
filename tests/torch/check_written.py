#!/usr/bin/env python3
"""What the program writes, judged by the torch and the zipfile of this machine.

    RESHARD_PROGRAM=… check_written.py [TEST]
"""

import collections
import json
import os
import struct
import unittest
import zipfile

import torch

import support
from support import DTYPES, Model, random_tensor

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
HAS_MMAP = VERSION >= (2, 1)
LOADS_DTYPES = VERSION >= (2, 0)  # with weights_only: before, a few dtypes were forgotten
ALIGNMENT = 64


def payload_offset(archive, entry):
    archive.fp.seek(entry.header_offset)
    header = archive.fp.read(30)
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    return entry.header_offset + len(header) + name_bytes + extra_bytes


class Written(support.TestCase):
    def load(self, path, weights_only=True):
        """What is in a file, once the file has been looked at from all sides."""
        with zipfile.ZipFile(path) as archive:
            self.assertIsNone(archive.testzip(), "a CRC is wrong")
            names = [entry.filename for entry in archive.infolist()]
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual({name.split("/")[0] for name in names}, {path.stem})
            for entry in archive.infolist():
                self.assertEqual(entry.compress_type, zipfile.ZIP_STORED)
                self.assertEqual(payload_offset(archive, entry) % ALIGNMENT, 0, entry.filename)
        value = torch.load(path, weights_only=weights_only)
        if HAS_MMAP and weights_only and isinstance(value, dict):
            mapped = torch.load(path, weights_only=True, mmap=True)
            tensors = {name: tensor for name, tensor in value.items() if isinstance(tensor, torch.Tensor)}
            if tensors:
                self.assert_same_tensors(mapped, tensors)
        return value

    def load_xser(self, path, has_info=True):
        """The state dict of an xser container, once everything around it has been looked at."""
        references = self.load(path, weights_only=False)
        if not has_info:
            return self.load_references(path, references)
        self.assertEqual({type(reference) for reference in references.values()}, {support.TensorReference})
        self.assertEqual([set(vars(reference)) for reference in references.values()], [{"tid"}] * len(references))
        info = self.load(path.with_name(path.name + ".info.pt"), weights_only=LOADS_DTYPES)
        folder = path.with_name(path.name + ".tensors")
        self.assertEqual({file.name for file in folder.iterdir()}, {f"tensor_{tid}.pt" for tid in info})
        self.assertEqual({reference.tid for reference in references.values()}, set(info))
        tensors = {}
        for tid, about in info.items():
            tensors[tid] = self.load(folder / f"tensor_{tid}.pt")
            self.assertEqual(about, {"dtype": tensors[tid].dtype, "shape": tensors[tid].shape,
                                     "expert_model_parallel": False})
            self.assertIs(type(about["shape"]), torch.Size)
        return {name: tensors[reference.tid] for name, reference in references.items()}

    def load_references(self, path, value):
        """`value` with the tensors that the references of an xser file without an info file stand for."""
        self.assertFalse(path.with_name(path.name + ".info.pt").exists())
        folder = path.with_name(path.name + ".tensors")
        tensors = {file.name: self.load(file) for file in folder.iterdir()}

        def resolve(item):
            if isinstance(item, dict):
                return {key: resolve(inner) for key, inner in item.items()}
            return tensors[f"tensor_{item.tid}.pt"] if isinstance(item, support.TensorReference) else item

        return resolve(value)

    def load_directory(self, directory):
        """A Hugging Face directory of pytorch files, by its index where it has one."""
        index_path = directory / "pytorch_model.bin.index.json"
        if not index_path.exists():
            return self.load(directory / "pytorch_model.bin")
        index = json.loads(index_path.read_text())
        files = {name: self.load(directory / name) for name in set(index["weight_map"].values())}
        self.assertEqual({file.name for file in directory.glob("*.bin")}, set(files))
        tensors = {name: tensor for file in files.values() for name, tensor in file.items()}
        self.assertEqual(index["weight_map"], {name: file for file, held in files.items() for name in held})
        self.assertEqual(index["metadata"]["total_size"],
                         sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
        return tensors


class Converted(Written):
    """convert --to hf --format pytorch."""

    def convert(self, tensors, *options):
        support.write_safetensors(self.directory / "in.safetensors", tensors)
        self.reshard("convert", self.directory / "in.safetensors", self.directory / "out", "--to", "hf", "--format",
                     "pytorch", *options)
        return self.load_directory(self.directory / "out")

    def test_every_dtype_and_shape(self):
        self.assertGreaterEqual(len(DTYPES), 11)
        tensors = {}
        for name, dtype in DTYPES.items():
            for shape in ((3, 5), (), (0,), (4, 0, 2), (7,), (2, 3, 1, 2), (300, 70000 // 300)):
                tensors[f"{name}.{'x'.join(map(str, shape))}"] = random_tensor(shape, dtype)
        held = self.convert(tensors)
        self.assert_same_tensors(held, tensors)
        for tensor in held.values():
            self.assertTrue(tensor.is_contiguous())
            self.assertFalse(tensor.requires_grad)

    def test_names_of_any_text(self):
        tensors = {name: random_tensor((2,)) for name in ("ü.weight", "a b", "x" * 4096, "q\"'\\", "层.weight", "0")}
        self.assert_same_tensors(self.convert(tensors), tensors)

    def test_several_files_and_their_index(self):
        tensors = {f"layers.{i}.weight": random_tensor((50, 40), torch.float32) for i in range(7)}
        held = self.convert(tensors, "--max-shard-size", "20KB")
        self.assert_same_tensors(held, tensors)
        self.assertEqual(sorted(file.name for file in (self.directory / "out").glob("*.bin")),
                         [f"pytorch_model-0000{i}-of-00004.bin" for i in range(1, 5)])

    def test_more_entries_than_a_zip_without_zip64_can_have(self):
        tensors = collections.OrderedDict((f"t{i}", torch.tensor([i], dtype=torch.int32)) for i in range(66000))
        held = self.convert(tensors)
        self.assertEqual(list(held), list(tensors))
        self.assertEqual(torch.cat(list(held.values())).tolist(), list(range(66000)))

    def test_a_cast_is_the_cast_of_torch(self):
        tensors = {"a": torch.randn(33, 70), "b": torch.tensor([0.0, -0.0, 1e-45, 65519.0, -2e-8, 3.14159])}
        held = self.convert(tensors, "--dtype", "bfloat16")
        self.assert_same_tensors(held, {name: tensor.bfloat16() for name, tensor in tensors.items()})

    def test_a_state_dict_of_torch_through_safetensors_and_back(self):
        tensors = {"a": random_tensor((3, 4)), "b": random_tensor((4, 3), torch.float32).t()}
        torch.save(tensors, self.directory / "in.pt")
        self.reshard("convert", self.directory / "in.pt", self.directory / "safetensors")
        self.assert_same_tensors(support.read_safetensors(self.directory / "safetensors/model.safetensors"), tensors)
        self.reshard("convert", self.directory / "safetensors", self.directory / "out", "--format", "pytorch")
        self.assert_same_tensors(self.load_directory(self.directory / "out"), tensors)


class Sharded(Written):
    """shard in both layouts and both of torch's formats, and consolidate --format pytorch."""

    def check(self, model, tp, options, layout, format):
        weights = support.weights_of(model, list(DTYPES.values()))
        hf, out, again = (self.directory / name for name in ("hf", "out", "again"))
        support.write_model(hf, model, weights)
        self.reshard("shard", hf, out, "--tp", tp, "--layout", layout, "--format", format, *options)
        ranks = []
        for rank in range(tp):
            if layout == "ranks":
                path = out / f"tensor_parallel_shards/tp_rank_{rank:02}_pp_rank_00"
                path = path if format == "xser" else path / "checkpoint.pt"
            else:
                path = out / f"shards/model/dp_rank_00_tp_rank_{rank:02}_pp_rank_00.pt"
            held = self.load_xser(path, layout != "ranks") if format == "xser" else self.load(path)
            if layout == "ranks":
                ranks.append(held)
                held = held["model"]
            with zipfile.ZipFile(path) as archive:  # an entry that torch.load passes over
                said = json.loads(archive.read(f"{path.stem}/reshard.json"))
            self.assertEqual(said, {"reshard.tp_rank": str(rank), "reshard.tp_degree": str(tp)})
            self.assert_same_tensors(held, support.cut(model, weights, tp, rank, fuse_qkv="--fuse-qkv" in options,
                                                          fuse_mlp=layout != "ranks"))
            if model.tied:
                self.assertEqual(held["lm_head.weight"].data_ptr(), held["model.embed_tokens.weight"].data_ptr())
        if ranks and "--fuse-qkv" not in options:
            whole = support.joined_by_metadata(model, ranks)
            if model.tied:
                del whole["lm_head.weight"]
            self.assert_same_tensors(whole, weights)
        elif ranks:
            self.assertEqual([set(rank) for rank in ranks], [{"model"}] * tp)
        self.reshard("consolidate", out, again, "-f", "pytorch")
        self.assert_same_tensors(self.load_directory(again), weights)
        self.reshard("verify", hf, again)

    def test_a_model_cut_over_pipeline_ranks_too(self):
        model = Model(layers=4, tied=True)
        weights = support.weights_of(model)
        hf, out = self.directory / "hf", self.directory / "out"
        support.write_model(hf, model, weights)
        self.reshard("shard", hf, out, "--tp", 2, "--pp", 2, "--layout", "optimum")
        stages = (("model.embed_tokens.", "model.layers.0.", "model.layers.1."),
                  ("model.embed_tokens.", "model.layers.2.", "model.layers.3.", "model.norm.", "lm_head."))
        for rank in range(2):
            cut = support.cut(model, weights, 2, rank)
            for stage, prefixes in enumerate(stages):
                held = self.load(out / f"shards/model/dp_rank_00_tp_rank_0{rank}_pp_rank_0{stage}.pt")
                self.assert_same_tensors(held, {name: cut[name] for name in cut if name.startswith(prefixes)})
            self.assertEqual(held["lm_head.weight"].data_ptr(), held["model.embed_tokens.weight"].data_ptr())


SHARDED = {"plain": (Model(), 2, ()), "grouped": (Model(), 8, ()), "fused": (Model(), 8, ("--fuse-qkv",)),
           "tied": (Model(tied=True), 2, ()), "biased": (Model(bias=True, tied=True), 8, ("--fuse-qkv",))}
support.add_tests(Sharded, {
    f"{name}_{layout}_{format}": dict(model=model, tp=tp, options=options, layout=layout, format=format)
    for layout in ("ranks", "optimum") for format in ("pytorch", "xser")
    for name, (model, tp, options) in SHARDED.items()})


@unittest.skipUnless(os.environ.get("RESHARD_BIG_TESTS"), "needs 5 GB of disk and of memory: set RESHARD_BIG_TESTS=1")
class Big(Written):
    def test_a_tensor_larger_than_4_GiB(self):
        size = 4_400_000_000
        marks = {0: b"first", 2**32 - 2: b"over", size - 4: b"last"}
        header = json.dumps({"big": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
                             "small": {"dtype": "I64", "shape": [2], "data_offsets": [size, size + 16]}}).encode()
        with open(self.directory / "in.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            begin = file.tell()
            for offset, text in marks.items():
                file.seek(begin + offset)
                file.write(text)
            file.write(struct.pack("<qq", 7, -7))
        self.reshard("convert", self.directory / "in.safetensors", self.directory / "out", "--format", "pytorch")
        held = self.load(self.directory / "out/pytorch_model.bin")
        self.assertEqual(held["small"].tolist(), [7, -7])
        big = held["big"].numpy()
        self.assertEqual(big.shape, (size,))
        self.assertEqual((big != 0).sum(), sum(map(len, marks.values())))
        for offset, text in marks.items():
            self.assertEqual(big[offset:offset + len(text)].tobytes(), text)
        self.reshard("verify", self.directory / "in.safetensors", self.directory / "out")


if __name__ == "__main__":
    support.install_tensor_reference()
    unittest.main()
