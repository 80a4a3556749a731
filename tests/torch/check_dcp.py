#!/usr/bin/env python3
"""Checkpoints of torch.distributed.checkpoint that the program writes, loaded by the torch of this machine (2.2 or later).

    RESHARD_PROGRAM=… check_dcp.py [TEST]
"""

import datetime
import json
import os
import pathlib
import socket
import time
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import support
from support import DTYPES, random_tensor, raw_bytes

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
RANKS = 4
SECONDS = 120  # that ranks may take
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "testdata" / "golden"
SIZES = {"first": (13, 7), "second": (2, 13), "third": (32, 2)}  # rows that four ranks do not divide, and too few


def layers():
    return torch.nn.ModuleDict({name: torch.nn.Linear(size[1], size[0]) for name, size in SIZES.items()})


def start_group(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=SECONDS))


def load_on_rank(rank, port, directory, expected):
    """Loads into a model that is sharded over all ranks, and compares every rank's part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    start_group(rank, port)
    try:
        model = layers()
        for layer in model.values():
            fully_shard(layer, mesh=init_device_mesh("cpu", (RANKS,)))
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=directory)
        for name, tensor in state["model"].items():
            if not isinstance(tensor, DTensor):
                raise AssertionError(f"{name} is not sharded")
            if not torch.equal(tensor.full_tensor(), expected[name]):
                raise AssertionError(f"{name} differs on rank {rank}")
    finally:
        dist.destroy_process_group()


def box_of(size, tp_dim, i, j):
    """What rank (i, j) of 2 x 2 has of a tensor: tensor parallelism splits `tp_dim`, or nothing, then FSDP rows."""
    box = [slice(0, rows) for rows in size]
    for dim, part in ((tp_dim, j), (0, i)):
        if dim is not None:
            begin, half = box[dim].start, (box[dim].stop - box[dim].start) // 2
            box[dim] = slice(begin + part * half, begin + (part + 1) * half)
    return tuple(box)


def load_box_on_rank(rank, port, directory, expected):
    """Loads into tensors that are split over both dims of a mesh, as FSDP2 splits those of tensor-parallel linears."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    start_group(rank, port)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))
        places = {0: (_StridedShard(0, split_factor=2), Shard(0)), 1: (Shard(0), Shard(1)),
                  None: (Shard(0), Replicate())}
        state, parts = {}, {}
        for name, (tensor, tp_dim) in expected.items():
            parts[name] = tensor[box_of(tensor.shape, tp_dim, *divmod(rank, 2))]
            # Nothing is sent: the parts are the ranks' own until they are loaded.
            state[name] = DTensor.from_local(torch.zeros_like(parts[name]), mesh, places[tp_dim], run_check=False,
                                             shape=tensor.shape, stride=tensor.stride())
        dcp.load(state, checkpoint_id=directory)
        for name, part in parts.items():
            if raw_bytes(state[name].to_local()) != raw_bytes(part):
                raise AssertionError(f"{name} differs on rank {rank}")
    finally:
        dist.destroy_process_group()


def run_on_ranks(work, *arguments):
    """Runs `work` on all ranks; an error on one, or all too long a time, ends all."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = torch.multiprocessing.spawn(work, (port, *arguments), nprocs=RANKS, join=False)
    end = time.monotonic() + SECONDS
    try:
        while not ranks.join(timeout=1):
            if time.monotonic() > end:
                raise AssertionError(f"the ranks have not ended after {SECONDS} seconds")
    finally:
        for process in ranks.processes:
            process.kill()


def optimizer_state(model, optimizer, flat):
    """As training programs save it, and an empty one of the same form to load into."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    return get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat))


def train(model, optimizer, steps=3):
    for step in range(steps):
        loss = sum(layer(torch.full((2, layer.in_features), 0.5 + step)).square().sum() for layer in model.values())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def model_of(shapes):
    """A module whose parameters have these names."""
    model = torch.nn.Module()
    for name, shape in shapes.items():
        *path, last = name.split(".")
        module = model
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
    return model


def flattened(state, before=()):
    """Every leaf of nested dictionaries and lists, by its path."""
    if isinstance(state, (dict, list)):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {path: leaf for key, value in items for path, leaf in flattened(value, (*before, key)).items()}
    return {before: state}


class Loaded(support.TestCase):
    def write(self, tensors, *options):
        support.write_safetensors(self.directory / "in.safetensors", tensors)
        self.reshard("convert", self.directory / "in.safetensors", self.directory / "out", "--to", "dcp", *options)
        return str(self.directory / "out")

    def assert_loads(self, directory, expected):
        state = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
        dcp.load(state, checkpoint_id=directory)
        self.assert_same_tensors(state, expected)

    def test_every_dtype_and_shape_in_one_process(self):
        tensors = {f"{name}.{'x'.join(map(str, shape))}": random_tensor(shape, dtype)
                   for name, dtype in DTYPES.items() for shape in ((3, 5), (), (0,), (4, 0, 2), (7,), (2, 3, 1, 2))}
        for options in ((), ("--fsdp", "3")):
            directory = self.write(tensors, *options, "--force")
            self.assert_loads(directory, tensors)

    def test_as_one_file_with_the_nesting_of_the_prefix(self):
        tensors = {f"layers.{i}.weight": random_tensor((5, 3), torch.float32) for i in range(300)}
        directory = self.write(tensors, "--fsdp", "2", "--prefix", "state_dict.model")
        dcp_to_torch_save(directory, self.directory / "whole.pt")
        state = torch.load(self.directory / "whole.pt", weights_only=True)
        self.assert_same_tensors(state["state_dict"]["model"], tensors)

    def test_with_the_names_and_the_order_of_rows_of_torchtitan(self):
        config = {"model_type": "llama", "vocab_size": 10, "hidden_size": 16, "intermediate_size": 6,
                  "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
        (self.directory / "config.json").write_text(json.dumps(config))
        layer = "model.layers.0."
        shapes = {"model.embed_tokens": ("tok_embeddings", 10, 16), "lm_head": ("output", 10, 16),
                  "model.norm": ("norm", 16), layer + "input_layernorm": ("layers.0.attention_norm", 16),
                  layer + "post_attention_layernorm": ("layers.0.ffn_norm", 16),
                  layer + "self_attn.q_proj": ("layers.0.attention.wq", 16, 16),
                  layer + "self_attn.k_proj": ("layers.0.attention.wk", 8, 16),
                  layer + "self_attn.v_proj": ("layers.0.attention.wv", 8, 16),
                  layer + "self_attn.o_proj": ("layers.0.attention.wo", 16, 16),
                  layer + "mlp.gate_proj": ("layers.0.feed_forward.w1", 6, 16),
                  layer + "mlp.up_proj": ("layers.0.feed_forward.w3", 6, 16),
                  layer + "mlp.down_proj": ("layers.0.feed_forward.w2", 16, 6)}
        tensors = {f"{name}.weight": random_tensor(shape, torch.bfloat16) for name, (_, *shape) in shapes.items()}
        expected = {f"{titan}.weight": tensors[f"{name}.weight"] for name, (titan, *_) in shapes.items()}
        for name in ("wq", "wk"):  # as in torchtitan/models/llama3/model/state_dict_adapter.py, from Hugging Face
            halves = expected[f"layers.0.attention.{name}.weight"]
            pairs = halves.view(-1, 2, 2, 16).transpose(1, 2).reshape(halves.shape)
            expected[f"layers.0.attention.{name}.weight"] = pairs
        for ranks in ("1", "3"):
            directory = self.write(tensors, "--config", self.directory, "--names", "torchtitan-0.2", "--fsdp", ranks,
                                   "--force")
            self.assert_loads(directory, expected)

    @unittest.skipIf(VERSION < (2, 6), "fully_shard is not in torch.distributed.fsdp yet")
    def test_by_four_ranks_of_fully_shard(self):
        torch.manual_seed(1)
        expected = layers().state_dict()
        directory = self.write(dict(expected), "--fsdp", "3", "--prefix", "model.")
        run_on_ranks(load_on_rank, directory, expected)

    @unittest.skipIf(VERSION < (2, 6), "placements of this torch are elsewhere")
    def test_in_boxes_of_a_mesh_of_two_dims(self):
        model = support.Model(vocab=32)
        weights = support.weights_of(model)
        support.write_model(self.directory, model, weights)
        dims = {**dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head"), 0),
                **dict.fromkeys(("o_proj", "down_proj"), 1)}
        expected = {name: (tensor, dims.get(name.split(".")[-2])) for name, tensor in weights.items()}
        for fsdp, tp in ((2, 2), (3, 2), (1, 4)):
            with self.subTest(fsdp=fsdp, tp=tp):
                directory = self.directory / f"{fsdp}x{tp}"
                self.reshard("shard", self.directory, directory, "--layout", "dcp", "--fsdp", fsdp, "--tp", tp)
                self.assert_loads(directory, weights)
                run_on_ranks(load_box_on_rank, str(directory), expected)
        metadata = dcp.FileSystemReader(str(self.directory / "2x2")).read_metadata()
        for name, (tensor, tp_dim) in expected.items():
            begins = {place.relative_path: tuple(index.offset) for index, place in metadata.storage_data.items()
                      if index.fqn == name}
            for rank in range(RANKS) if tp_dim is not None else ():
                box = box_of(tensor.shape, tp_dim, *divmod(rank, 2))
                self.assertEqual(begins[f"__{rank}_0.distcp"], tuple(part.start for part in box), (name, rank))

    def test_an_optimizer_goes_along_to_another_mesh_and_the_run_goes_on(self):
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        for flat in (False, True):
            torch.manual_seed(2)
            model = layers()
            optimizer = torch.optim.AdamW([{"params": model["first"].parameters(), "lr": 0.5},
                                           {"params": [p for n in ("second", "third") for p in model[n].parameters()]}],
                                          lr=0.25)
            train(model, optimizer)
            saved = {"model": model.state_dict(), "optim": optimizer_state(model, optimizer, flat),
                     "lr_scheduler": {"last_epoch": 3, "gammas": [0.5, 0.25]}, "rng": torch.get_rng_state(),
                     "dataloader": {"dp_rank_0": b"pickled"}}
            source, target = self.directory / f"run-{flat}", self.directory / f"out-{flat}"
            dcp.save(saved, checkpoint_id=source)
            self.reshard("convert", source, target, "--to", "dcp", "--fsdp", "3", "--prefix", "model",
                         "--with-optimizer")
            self.reshard("verify", source, target, "--with-optimizer")

            other = layers()
            others = torch.optim.AdamW([{"params": other["first"].parameters(), "lr": 0.75},
                                        {"params": [p for n in ("second", "third") for p in other[n].parameters()]}],
                                       lr=0.875)
            train(other, others, 1)
            loaded = {"model": other.state_dict(), "optim": optimizer_state(other, others, flat),
                      "lr_scheduler": {"last_epoch": 0, "gammas": [0, 0]}, "rng": torch.zeros_like(saved["rng"]),
                      "dataloader": {"dp_rank_0": b""}}
            dcp.load(loaded, checkpoint_id=target)
            expected, found = flattened(saved), flattened(loaded)
            self.assertEqual(found.keys(), expected.keys())
            for path, leaf in expected.items():
                with self.subTest(flat=flat, path=path):
                    if isinstance(leaf, torch.Tensor):
                        self.assertEqual(found[path].dtype, leaf.dtype)
                        self.assertTrue(torch.equal(found[path], leaf))
                    else:
                        self.assertEqual(found[path], leaf)

            other.load_state_dict(loaded["model"])
            set_optimizer_state_dict(other, others, loaded["optim"])
            for one in (model, optimizer), (other, others):
                train(*one)
            self.assert_same_tensors(other.state_dict(), model.state_dict())

            dcp_to_torch_save(target, self.directory / "whole.pt")
            whole = torch.load(self.directory / "whole.pt", weights_only=False)
            self.assertEqual(flattened(whole).keys(), expected.keys())

    def test_both_names_of_a_tied_parameter(self):
        model = support.Model(tied=True)
        weights = support.weights_of(model)
        support.write_model(self.directory, model, weights)
        expected = {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
        for ranks in ("1", "3"):
            directory = self.directory / f"tied-{ranks}"
            self.reshard("convert", self.directory, directory, "--to", "dcp", "--fsdp", ranks)
            self.assert_loads(directory, expected)
            dcp_to_torch_save(directory, self.directory / "whole.pt")
            self.assert_same_tensors(torch.load(self.directory / "whole.pt", weights_only=True), expected)

    def test_experts_that_torchtitan_stacks(self):
        config = {"model_type": "qwen3_moe", "vocab_size": 10, "hidden_size": 16, "intermediate_size": 6,
                  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
                  "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "decoder_sparse_step": 1}
        (self.directory / "config.json").write_text(json.dumps(config))
        shapes = {"model.embed_tokens": (10, 16), "lm_head": (10, 16), "model.norm": (16,)}
        for layer in ("model.layers.0.", "model.layers.1."):
            shapes.update({layer + "input_layernorm": (16,), layer + "post_attention_layernorm": (16,),
                           layer + "self_attn.q_proj": (16, 16), layer + "self_attn.k_proj": (8, 16),
                           layer + "self_attn.v_proj": (8, 16), layer + "self_attn.o_proj": (16, 16),
                           layer + "self_attn.q_norm": (4,), layer + "self_attn.k_norm": (4,),
                           layer + "mlp.gate": (5, 16)})
            for expert in range(5):
                module = f"{layer}mlp.experts.{expert}."
                shapes.update({module + "gate_proj": (6, 16), module + "up_proj": (6, 16),
                               module + "down_proj": (16, 6)})
        tensors = {f"{name}.weight": random_tensor(shape, torch.bfloat16) for name, shape in shapes.items()}
        expected = {f"layers.{layer}.moe.experts.{stack}": torch.stack(
            [tensors[f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight"] for expert in range(5)])
            for layer in range(2) for stack, name in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))}
        for ranks in ("1", "3"):
            directory = self.write(tensors, "--config", self.directory, "--names", "torchtitan-0.2", "--fsdp", ranks,
                                   "--force")
            self.assert_loads(directory, expected)

    def test_an_optimizer_of_nxd_steps_on_in_torch(self):
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        for case, is_step_a_number in (("nxd-llama-dp2-tp2", False), ("nxd-llama-dp4-tp2-pp2", True)):
            with self.subTest(case=case):
                source = GOLDEN / "zero1" / case
                first = next((source / "checkpoint").glob("step_*/optim/dp_rank_00_tp_rank_00_pp_rank_00.pt"))
                saved = torch.load(first, weights_only=True)
                steps = [state["step"] for state in saved["base_state"].values()]
                self.assertEqual({type(step) is int for step in steps}, {is_step_a_number})
                target = self.directory / case
                self.reshard("convert", source / "checkpoint", target, "--config", source / "original", "--to", "dcp",
                             "--fsdp", "3", "--prefix", "model", "--with-optimizer")

                # Groups and steps are what the files of the optimizer have.
                dcp_to_torch_save(target, self.directory / "whole.pt")
                whole = torch.load(self.directory / "whole.pt", weights_only=True)
                groups = whole["optimizer"]["param_groups"]
                self.assertEqual([{**group, "params": None} for group in groups],
                                 [{**group, "params": None} for group in saved["param_groups"]])
                shapes = {name: tensor.shape for name, tensor in whole["model"].items()}
                names = [name for group in groups for name in group["params"]]
                self.assertEqual(sorted(names), sorted(shapes))
                self.assertEqual(whole["optimizer"]["state"].keys(), shapes.keys())

                # An optimizer of a model with these names takes them.
                model = model_of(shapes)
                parameters = dict(model.named_parameters())
                optimizer = torch.optim.AdamW([{"params": [parameters[name] for name in group["params"]]}
                                               for group in groups], lr=1.0)
                set_optimizer_state_dict(model, optimizer, whole["optimizer"])
                for group, expected in zip(optimizer.param_groups, saved["param_groups"]):
                    self.assertEqual([group[key] for key in ("lr", "weight_decay", "eps")],
                                     [expected[key] for key in ("lr", "weight_decay", "eps")])
                for name, parameter in parameters.items():
                    state = optimizer.state[parameter]
                    self.assertEqual((state["step"].dtype, state["step"].shape), (torch.float32, ()))
                    self.assertEqual(state["step"].item(), float(steps[0]))
                    for moment in ("exp_avg", "exp_avg_sq"):
                        self.assertTrue(torch.equal(state[moment], whole["optimizer"]["state"][name][moment]))
                        self.assertTrue(state[moment].any())
                if is_step_a_number:
                    continue  # that optimizer is not torch's, and has no values for some of its names

                # And so does dcp.load, in place.
                loaded = {"optimizer": optimizer_state(model, optimizer, False)}
                for group in loaded["optimizer"]["param_groups"]:
                    group["lr"] = group["betas"] = None
                for state in loaded["optimizer"]["state"].values():
                    for tensor in state.values():
                        tensor.zero_()
                dcp.load(loaded, checkpoint_id=target)
                expected = flattened(whole["optimizer"])
                for path, leaf in flattened(loaded["optimizer"]).items():
                    if isinstance(leaf, torch.Tensor):
                        self.assertTrue(torch.equal(leaf, expected[path]), path)
                    else:
                        self.assertEqual(leaf, expected[path], path)


if __name__ == "__main__":
    unittest.main()
