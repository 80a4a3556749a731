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
    def check(self, model, tp=8, stages=1, fuse_qkv=False, knows_fusion=True, xser=False, config=True,
              missing=0, exit_code=0):
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
        return self.consolidated(weights, exit_code)

    def test_grouped_query_attention(self):
        self.check(Model())

    def test_before_there_was_fuse_qkv(self):
        self.check(Model(), knows_fusion=False)

    def test_fused_query_key_value(self):
        self.check(Model(), fuse_qkv=True)

    def test_fused_over_pipeline_ranks_each_of_which_names_all_layers(self):
        self.check(Model(layers=4), stages=2, fuse_qkv=True)

    def test_biases(self):
        self.check(Model(bias=True))

    def test_fused_biases(self):
        self.check(Model(bias=True), fuse_qkv=True)

    def test_several_slots_a_rank_and_many_heads(self):
        self.check(Model(heads=24, kv_heads=6, head_dim=2, hidden=48), tp=4)

    def test_tied_embeddings(self):
        self.check(Model(tied=True), fuse_qkv=True)

    def test_xser(self):
        self.check(Model(), fuse_qkv=True, xser=True)

    def test_without_a_config_the_metadata_is_enough_and_a_note_says_what_it_leaves_open(self):
        said = self.check(Model(), fuse_qkv=True, config=False)
        self.assertIn("missing last ranks would go unnoticed", said)
        self.assertNotIn("tied", said)

    def test_tied_embeddings_without_a_config(self):
        self.assertIn("lm_head.weight is tied", self.check(Model(tied=True), fuse_qkv=True, config=False))

    def test_a_missing_last_rank_that_heads_show_without_a_config(self):
        said = self.check(Model(), fuse_qkv=True, config=False, missing=1, exit_code=3)
        self.assertIn("the TP degree 7 is not a multiple of 2", said)

    def test_a_missing_last_rank(self):
        said = self.check(Model(kv_heads=8), missing=1, exit_code=3)
        self.assertIn("config.json", said)


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

    def test_a_state_dict_under_model(self):
        weights = self.put_ranks(Model(), 2, lambda shard: {"model": shard, "optimizer_state_dict": {"state": {}},
                                                            "epoch": 3})
        self.assertIn('under "model"', self.consolidated(weights))

    def test_parameters_with_attributes(self):
        def change(shard):
            return collections.OrderedDict((name, parameter_with_attributes(tensor)) for name, tensor in shard.items())

        self.consolidated(self.put_ranks(Model(), 8, change))

    def check_column_major(self, tp):
        def change(shard):
            turned = {name: column_major(tensor) for name, tensor in shard.items() if tensor.dim() == 2}
            self.assertEqual({tensor.stride()[0] for tensor in turned.values()}, {1})
            return {**shard, **turned}

        self.consolidated(self.put_ranks(Model(), tp, change))

    def test_column_major_matrices(self):
        self.check_column_major(2)

    def test_column_major_matrices_whose_heads_are_out_of_order(self):
        self.check_column_major(8)

    def test_views_of_one_storage(self):
        def change(shard):
            flat = torch.cat([tensor.flatten() for tensor in shard.values()])
            views = flat.split([tensor.numel() for tensor in shard.values()])
            return {name: view.view(tensor.shape) for (name, tensor), view in zip(shard.items(), views)}

        self.consolidated(self.put_ranks(Model(), 2, change))

    def test_streams_from_before_the_zip_format(self):
        self.consolidated(self.put_ranks(Model(), 2, _use_new_zipfile_serialization=False))

    def test_data_parallel_copies(self):
        self.consolidated(self.put_ranks(Model(), 2, copies=("_dp_rank_00", "_dp_rank_01")))

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


if __name__ == "__main__":
    support.install_tensor_reference()
    unittest.main()
