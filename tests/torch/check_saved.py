#!/usr/bin/env python3
"""Shards as training systems save them with torch, consolidated by the program.

    RESHARD_PROGRAM=… check_saved.py [TEST]
"""

import collections
import json
import unittest

import torch

import support
from support import Model


def column_major(tensor):
    return tensor.t().contiguous().t()


def parameter_with_attributes(tensor):
    parameter = torch.nn.Parameter(tensor)
    parameter.tensor_model_parallel = True
    parameter.partition_dim = 0
    parameter.partition_stride = 1
    return parameter


def stage_of(name, model, stages):
    """The pipeline rank of a name in the state dict."""
    if name.startswith("model.layers."):
        return int(name.split(".")[2]) * stages // model.layers
    return 0 if name.startswith("model.embed_tokens.") else stages - 1


def old_metadata(model, tp, shard, fuse_qkv, knows_fusion):
    """mp_metadata_pp_rank_N.pt of optimum-neuron before it wrote JSON. `shard` has the tensors of rank 0."""
    sharded = {"embed_tokens": 0, "lm_head": 0, "qkv_proj": 0, "o_proj": 1, "gate_proj": 0, "up_proj": 0,
               "down_proj": 1}
    parameters = {}
    for name in shard:
        if name == "lm_head.weight" and model.tied:
            continue
        projection, kind = name.split(".")[-2:]
        dim = None if projection in ("o_proj", "down_proj") and kind == "bias" else sharded.get(projection)
        parameters[name] = {"kind": "tied" if dim is None else "sharded", "partition_dim": dim}
    names, outputs = collections.OrderedDict(), set()
    for layer in range(model.layers):  # of all stages
        module = f"model.layers.{layer}.self_attn."
        for kind in ("weight", "bias") if model.bias else ("weight",):
            for letter in "qkv":
                names[f"{module}{letter}_proj.{kind}"] = f"{module}qkv_proj.{kind}_{'qkv' if fuse_qkv else letter}"
            outputs.add(f"{module}o_proj.{kind}")
    multiplier = support.multiplier_of(model, tp)
    attention = {"original_names_to_gqa_qkv_names": dict(names), "output_projections_names": outputs,
                 "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
                 "kv_size_multiplier": multiplier}
    if knows_fusion:
        attention.update(fuse_qkv=fuse_qkv, q_output_size_per_partition=model.heads * model.head_dim // tp,
                         kv_output_size_per_partition=model.kv_heads * multiplier * model.head_dim // tp)
    return {"sharded_metadata": parameters, "gqa_qkv_metadata": attention}


class Saved(support.TestCase):
    def setUp(self):
        super().setUp()
        self.shards = self.directory / "in/shards"
        self.ranks = self.directory / "in/tensor_parallel_shards"

    def put(self, path, value, xser=False):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not xser:
            return torch.save(value, path)
        folder = path.with_name(path.name + ".tensors")
        folder.mkdir()
        for tid, tensor in enumerate(value.values()):
            torch.save(tensor.detach().clone(), folder / f"tensor_{tid}.pt")
        torch.save({name: support.TensorReference(tid) for tid, name in enumerate(value)}, path)

    def put_optimum(self, rank, value, pp_rank=0, **options):
        self.put(self.shards / f"model/dp_rank_00_tp_rank_{rank:02}_pp_rank_{pp_rank:02}.pt", value, **options)

    def put_config(self, model):
        (self.directory / "in").mkdir(exist_ok=True)
        (self.directory / "in/config.json").write_text(json.dumps(support.config_of(model)))

    def consolidated(self, expected, exit_code=0):
        """Returns what the program says."""
        said = self.reshard("consolidate", self.directory / "in", self.directory / "out", exit_code=exit_code)
        if exit_code == 0:
            self.assert_same_tensors(support.read_safetensors(self.directory / "out/model.safetensors"), expected)
        return said


class OldMetadata(Saved):
    def check(self, model=Model(), tp=8, stages=1, fuse_qkv=False, knows_fusion=True, xser=False, config=True,
              missing=0, exit_code=0, says="", unsaid=None):
        weights = support.weights_of(model)
        if config:
            self.put_config(model)
        for rank in range(tp - missing):
            shard = support.cut(model, weights, tp, rank, fuse_qkv, fuse_mlp=False)
            for stage in range(stages):
                held = {name: tensor for name, tensor in shard.items() if stage_of(name, model, stages) == stage}
                self.put_optimum(rank, held, stage, xser=xser)
                if rank == 0:
                    torch.save(old_metadata(model, tp, held, fuse_qkv, knows_fusion),
                               self.shards / f"mp_metadata_pp_rank_{stage}.pt")
        said = self.consolidated(weights, exit_code)
        self.assertIn(says, said)
        self.assertFalse(unsaid and unsaid in said, said)


support.add_tests(OldMetadata, {
    "grouped_query_attention": {},
    "before_there_was_fuse_qkv": dict(knows_fusion=False),
    "fused_query_key_value": dict(fuse_qkv=True),
    "fused_over_pipeline_ranks_each_of_which_names_all_layers": dict(model=Model(layers=4), stages=2, fuse_qkv=True),
    "biases": dict(model=Model(bias=True)),
    "fused_biases": dict(model=Model(bias=True), fuse_qkv=True),
    "several_slots_a_rank_and_many_heads": dict(model=Model(heads=24, kv_heads=6, head_dim=2, hidden=48), tp=4),
    "tied_embeddings": dict(model=Model(tied=True), fuse_qkv=True),
    "xser": dict(fuse_qkv=True, xser=True),
    "without_a_config_the_metadata_is_enough_and_a_note_says_what_it_leaves_open":
        dict(fuse_qkv=True, config=False, says="missing last ranks cannot be detected", unsaid="tied"),
    "tied_embeddings_without_a_config":
        dict(model=Model(tied=True), fuse_qkv=True, config=False, says="lm_head.weight is tied"),
    "a_missing_last_rank_that_heads_show_without_a_config":
        dict(fuse_qkv=True, config=False, missing=1, exit_code=3, says="the TP degree 7 is not a multiple of 2"),
    "a_missing_last_rank": dict(model=Model(kv_heads=8), missing=1, exit_code=3, says="config.json")})


class Shards(Saved):
    def put_ranks(self, model, tp, change=lambda shard: shard, copies=("",), **options):
        """NxD's first layout. Returns the whole model."""
        weights = support.weights_of(model)
        self.put_config(model)
        for rank in range(tp):
            for copy in copies:
                path = self.ranks / f"tp_rank_{rank:02}_pp_rank_00{copy}/checkpoint.pt"
                path.parent.mkdir(parents=True)
                torch.save(change(support.cut(model, weights, tp, rank)), path, **options)
        return weights

    def check(self, tp=2, change=lambda shard: shard, says="", **options):
        self.assertIn(says, self.consolidated(self.put_ranks(Model(), tp, change, **options)))

    def test_data_parallel_copies_that_differ(self):
        values = iter((0, 1))

        def change(shard):
            shard["model.norm.weight"][3] = next(values)
            return shard

        weights = self.put_ranks(Model(), 1, change, copies=("_dp_rank_00", "_dp_rank_01"))
        self.assertIn("model.norm.weight", self.consolidated(weights, exit_code=3))

    def test_a_save_that_was_cut_off_is_told(self):
        model = Model()
        weights = support.weights_of(model)
        self.put_config(model)
        for rank in range(2):
            self.put_optimum(rank, support.cut(model, weights, 2, rank))
        (self.shards / "checkpoint").write_text("1")
        self.assertIn('no file "done"', self.consolidated(weights))
        (self.shards / "done").write_text("1")
        (self.directory / "out/model.safetensors").unlink()
        self.assertNotIn("done", self.reshard("consolidate", self.directory / "in", self.directory / "again"))


def in_column_major_matrices(shard):
    turned = {name: column_major(tensor) for name, tensor in shard.items() if tensor.dim() == 2}
    assert {tensor.stride()[0] for tensor in turned.values()} == {1}
    return {**shard, **turned}


def in_one_storage(shard):
    flat = torch.cat([tensor.flatten() for tensor in shard.values()])
    views = flat.split([tensor.numel() for tensor in shard.values()])
    return {name: view.view(tensor.shape) for (name, tensor), view in zip(shard.items(), views)}


support.add_tests(Shards, {
    "a_state_dict_under_model": dict(change=lambda shard: {"model": shard, "optimizer_state_dict": {"state": {}},
                                                           "epoch": 3}, says='under "model"'),
    "parameters_with_attributes": dict(tp=8, change=lambda shard: collections.OrderedDict(
        (name, parameter_with_attributes(tensor)) for name, tensor in shard.items())),
    "column_major_matrices": dict(change=in_column_major_matrices),
    "column_major_matrices_whose_heads_are_out_of_order": dict(tp=8, change=in_column_major_matrices),
    "views_of_one_storage": dict(change=in_one_storage),
    "streams_from_before_the_zip_format": dict(_use_new_zipfile_serialization=False),
    "data_parallel_copies": dict(copies=("_dp_rank_00", "_dp_rank_01"))})


if __name__ == "__main__":
    support.install_tensor_reference()
    unittest.main()
