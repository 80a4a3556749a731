"""Small checkpoints, safetensors read and written by hand, and the program: what check_*.py share."""

import collections
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import types
import unittest

import torch

# Names in safetensors headers, and in torch.
DTYPES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
          "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
          "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32",
          "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64"}
# This torch may be too young or too old for some.
DTYPES = {name: getattr(torch, torch_name) for name, torch_name in DTYPES.items() if hasattr(torch, torch_name)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorReference:
    """Stands in for torch_xla's class of that name."""

    def __init__(self, tid):
        self.tid = tid


def install_tensor_reference():
    TensorReference.__module__ = "torch_xla.utils.serialization"
    for module in ("torch_xla", "torch_xla.utils", "torch_xla.utils.serialization"):
        sys.modules[module] = types.ModuleType(module)
    sys.modules["torch_xla.utils.serialization"].TensorReference = TensorReference


def raw_bytes(tensor):
    """Its elements in C order."""
    flat = tensor.detach().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def tensor_of_bytes(data, dtype, shape):
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)


def random_tensor(shape, dtype=torch.bfloat16):
    size = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    data = os.urandom(size)
    return tensor_of_bytes(bytes(byte & 1 for byte in data) if dtype == torch.bool else data, dtype, shape)


def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, []
    end = 0
    for name, tensor in tensors.items():
        data.append(raw_bytes(tensor))
        begin, end = end, end + len(data[-1])
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(path):
    data = path.read_bytes()
    begin = 8 + struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: tensor_of_bytes(data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]],
                                  DTYPES[entry["dtype"]], entry["shape"]) for name, entry in header.items()}


Model = collections.namedtuple("Model", "heads kv_heads head_dim hidden intermediate layers vocab tied bias")
Model.__new__.__defaults__ = (8, 4, 4, 32, 48, 2, 64, False, False)


def config_of(model):
    return {"model_type": "llama", "hidden_size": model.hidden, "intermediate_size": model.intermediate,
            "num_hidden_layers": model.layers, "num_attention_heads": model.heads, "head_dim": model.head_dim,
            "num_key_value_heads": model.kv_heads, "vocab_size": model.vocab, "tie_word_embeddings": model.tied,
            "attention_bias": model.bias}


def weights_of(model, dtypes=(torch.bfloat16,)):
    """A llama's state dict as Hugging Face has it, of random bytes; the dtypes take turns."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    shapes = {"model.embed_tokens.weight": (model.vocab, model.hidden)}
    for layer in range(model.layers):
        attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
        for name, rows, columns in (("q", q, model.hidden), ("k", kv, model.hidden), ("v", kv, model.hidden),
                                    ("o", model.hidden, q)):
            shapes[f"{attention}{name}_proj.weight"] = (rows, columns)
            if model.bias:
                shapes[f"{attention}{name}_proj.bias"] = (rows,)
        shapes[mlp + "gate_proj.weight"] = shapes[mlp + "up_proj.weight"] = (model.intermediate, model.hidden)
        shapes[mlp + "down_proj.weight"] = (model.hidden, model.intermediate)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{norm}.weight"] = (model.hidden,)
    shapes["model.norm.weight"] = (model.hidden,)
    if not model.tied:
        shapes["lm_head.weight"] = (model.vocab, model.hidden)
    # What is joined has one dtype.
    turns = collections.OrderedDict()
    for name in shapes:
        kind = name.replace("q_proj", "k_proj").replace("v_proj", "k_proj").replace("up_proj", "gate_proj")
        turns.setdefault(kind.rpartition(".")[0], len(turns))
        turns[name] = turns[kind.rpartition(".")[0]]
    return {name: random_tensor(shape, dtypes[turns[name] % len(dtypes)]) for name, shape in shapes.items()}


def write_model(directory, model, weights):
    write_safetensors(directory / "model.safetensors", weights)
    (directory / "config.json").write_text(json.dumps(config_of(model)))


def multiplier_of(model, tp):
    """How often each key/value head is there: the fewest copies that divide over the ranks."""
    return next(m for m in range(1, tp + 1) if tp % m == 0 and model.kv_heads * m % tp == 0)


def slots_of_rank(model, tp, rank):
    """The key/value heads of a rank, and its query heads, in their order; (head, replica) a slot."""
    multiplier = multiplier_of(model, tp)
    a_rank = model.kv_heads * multiplier // tp
    slots = [(slot % model.kv_heads, slot // model.kv_heads) for slot in range(rank * a_rank, (rank + 1) * a_rank)]
    group = model.heads // model.kv_heads
    a_slot = group // multiplier
    return [head for head, _ in slots], [head * group + replica * a_slot + i for head, replica in slots
                                         for i in range(a_slot)]


def part(tensor, dim, tp, rank):
    return tensor.chunk(tp, dim)[rank].clone()


def cut(model, weights, tp, rank, fuse_qkv=False, fuse_mlp=True):
    """One rank's tensors of a model whose key/value heads do not divide over the ranks, or do."""
    grouped = model.kv_heads % tp != 0
    kv_heads, q_heads = slots_of_rank(model, tp, rank) if grouped else ([], [])

    def heads_of(tensor, heads, dim=0):
        return torch.cat([tensor.narrow(dim, head * model.head_dim, model.head_dim) for head in heads], dim)

    shard = {}
    for name, tensor in weights.items():
        prefix, projection, kind = ("." + name).rsplit(".", 2)
        prefix = prefix[1:] + "."
        if projection in ("q_proj", "k_proj", "v_proj") and grouped:
            joined = heads_of(tensor, q_heads if projection == "q_proj" else kv_heads)
            target = f"{prefix}qkv_proj.{kind}_" + ("qkv" if fuse_qkv else projection[0])
            shard[target] = torch.cat([shard[target], joined]) if target in shard else joined
        elif projection == "o_proj" and kind == "weight" and grouped:
            shard[name] = heads_of(tensor, q_heads, 1)
        elif projection in ("gate_proj", "up_proj") and fuse_mlp:
            target = f"{prefix}gate_up_proj.{kind}"
            joined = part(tensor, 0, tp, rank)
            shard[target] = torch.cat([shard[target], joined]) if target in shard else joined
        elif projection in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"):
            shard[name] = part(tensor, 0, tp, rank)
        elif projection in ("o_proj", "down_proj") and kind == "weight":
            shard[name] = part(tensor, 1, tp, rank)
        else:
            shard[name] = tensor.clone()
    if model.tied:
        shard["lm_head.weight"] = shard["model.embed_tokens.weight"]
    return shard


def joined_by_metadata(model, ranks):
    """The whole tensors of rank files that describe themselves, by what optimum-neuron's metadata means."""
    tp = len(ranks)
    attention = ranks[0]["gqa_qkv_metadata"]
    originals = {fused: name for name, fused in attention["original_names_to_gqa_qkv_names"].items()}
    order = [head for rank in range(tp) for head in slots_of_rank(model, tp, rank)[1]] if originals else []

    def in_order(tensor, dim):
        heads = dict(zip(order, tensor.split(model.head_dim, dim)))
        return torch.cat([heads[head] for head in sorted(heads)], dim)

    whole = {}
    for name, tensor in ranks[0]["model"].items():
        about = ranks[0]["sharded_metadata"].get(name, {"kind": "tied"})
        if about["kind"] != "tied":
            tensor = torch.cat([rank["model"][name] for rank in ranks], about["partition_dim"])
        letter = name[-1] if name in originals else ""
        if letter in ("k", "v"):
            tensor = tensor.chunk(attention["kv_size_multiplier"])[0]
        elif letter == "q":
            tensor = in_order(tensor, 0)
        elif name in attention["output_projections_names"] and about["kind"] != "tied":
            tensor = in_order(tensor, about["partition_dim"])
        whole[originals.get(name, name)] = tensor
    return whole


class TestCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def reshard(self, *arguments, exit_code=0):
        """Runs the program. Returns what it says on standard error."""
        command = [os.environ["RESHARD_PROGRAM"], *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        self.assertEqual(done.returncode, exit_code, f"{command}\n{done.stdout}{done.stderr}")
        return done.stderr

    def assert_same_tensors(self, held, expected):
        self.assertEqual(sorted(held), sorted(expected))
        for name, tensor in expected.items():
            with self.subTest(tensor=name):
                self.assertEqual((held[name].dtype, held[name].shape), (tensor.dtype, tensor.shape))
                self.assertEqual(raw_bytes(held[name]), raw_bytes(tensor), "the bytes differ")


def add_tests(of, cases):
    """Makes each case a test of the class `of`, which checks it with these arguments."""
    for name, arguments in cases.items():
        setattr(of, f"test_{name}", lambda self, arguments=arguments: self.check(**arguments))
