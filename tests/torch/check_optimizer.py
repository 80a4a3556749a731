#!/usr/bin/env python3
"""Training goes on from the optimizer's files that the program writes, as if it had never stopped.

    RESHARD_PROGRAM=… check_optimizer.py [TEST]
"""

import itertools
import json
import unittest

import torch

import support
from support import Model

# torch 1.13 reads no float so, not even one that it has saved itself.
SAFE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 0)
MODEL = Model(heads=4, kv_heads=2, layers=2)


def decays(name):
    """The rule of NxD's examples for the first of two groups."""
    return "norm" not in name and "bias" not in name


def numbered(names):
    return [name for name in names if decays(name)], [name for name in names if not decays(name)]


def rows_of(tensor, rank, ranks):
    """The rows of a data-parallel rank, filled up with zeros."""
    rows = -(-len(tensor) // ranks)
    padded = torch.cat([tensor, tensor.new_zeros(rows * ranks - len(tensor), *tensor.shape[1:])])
    return padded[rank * rows:(rank + 1) * rows].clone()


def plain(group):
    """What becomes of a group on NxD's way to the host."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in group.items()}


class Run:
    """Weights and an optimizer that torch has made a few steps with."""

    def __init__(self):
        torch.manual_seed(7)
        shapes = {name: tensor.shape for name, tensor in support.weights_of(MODEL).items()}
        self.weights = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
        self.groups = numbered(self.weights)
        self.optimizer = torch.optim.AdamW([{"params": [self.weights[name] for name in self.groups[0]]},
                                            {"params": [self.weights[name] for name in self.groups[1]],
                                             "weight_decay": 0.0}], lr=1e-3, amsgrad=True)
        for _ in range(3):
            self.step()

    def gradients(self):
        torch.manual_seed(11)
        return {name: torch.randn(weight.shape) for name, weight in self.weights.items()}

    def step(self):
        for name, gradient in self.gradients().items():
            self.weights[name].grad = gradient
        self.optimizer.step()

    def states(self, key):
        return {name: self.optimizer.state[weight][key] for name, weight in self.weights.items()}

    def save(self, directory, tp, dp):
        """As NxD saves it: model/ and optim/, of ZeRO-1."""
        for folder in ("model", "optim"):
            (directory / folder).mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(support.config_of(MODEL)))
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        keys = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        for rank in range(tp):
            shard = support.cut(MODEL, weights, tp, rank)
            torch.save(shard, directory / f"model/dp_rank_00_tp_rank_{rank:02}_pp_rank_00.pt")
            cut = {key: support.cut(MODEL, self.states(key), tp, rank) for key in keys[1:]}
            groups = numbered(shard)
            names = [*groups[0], *groups[1]]
            ids = iter(itertools.count())
            param_groups = []
            for group, own in zip(self.optimizer.param_groups, groups):
                param_groups.append({**plain(group), "params": [next(ids) for _ in own]})
            for dp_rank in range(dp):
                base = {}
                for number, name in enumerate(names):
                    base[number] = {"step": torch.tensor(3.0)}
                    for key in keys[1:]:
                        base[number][key] = rows_of(cut[key][name], dp_rank, dp)
                torch.save({"state": {}, "param_groups": param_groups, "base_state": base,
                            "shape_info": {number: list(shard[name].shape) for number, name in enumerate(names)},
                            "sharded_master_weights": {number: rows_of(shard[name], dp_rank, dp)
                                                       for number, name in enumerate(names)}},
                           directory / f"optim/dp_rank_{dp_rank:02}_tp_rank_{rank:02}_pp_rank_00.pt")


def merged(files, number, key):
    """A state of a parameter that data-parallel ranks share."""
    shape = files[0]["shape_info"][number]
    parts = [file["base_state"][number][key] for file in files]
    return parts[0] if key == "step" else torch.cat(parts)[:shape[0]]


class Optimizer(support.TestCase):
    def load(self, path):
        return torch.load(path, weights_only=SAFE)

    def check_goes_on(self, run, directory, dp):
        """Puts the files of one tensor- and pipeline-parallel rank into an optimizer, and makes a step with both."""
        model = self.load(directory / "model/dp_rank_00_tp_rank_00_pp_rank_00.pt")
        files = [self.load(directory / f"optim/dp_rank_{rank:02}_tp_rank_00_pp_rank_00.pt") for rank in range(dp)]
        self.assertEqual(list(files[0]), ["state", "param_groups", "base_state", "shape_info",
                                          "sharded_master_weights"])
        groups = numbered(model)
        names = [*groups[0], *groups[1]]
        self.assertEqual([group["params"] for group in files[0]["param_groups"]],
                         [list(range(len(groups[0]))), list(range(len(groups[0]), len(names)))])
        parameters = {}
        for number, name in enumerate(names):
            self.assertEqual(files[0]["shape_info"][number], list(model[name].shape))
            master = torch.cat([file["sharded_master_weights"][number] for file in files])[:len(model[name])]
            self.assertTrue(torch.equal(master, model[name]), name)
            parameters[name] = torch.nn.Parameter(master)
        optimizer = torch.optim.AdamW([{"params": [parameters[name] for name in own]} for own in groups])
        state = {number: {key: merged(files, number, key) for key in files[0]["base_state"][number]}
                 for number in range(len(names))}
        optimizer.load_state_dict({"state": state, "param_groups": files[0]["param_groups"]})
        gradients = support.cut(MODEL, run.gradients(), 1, 0)
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimizer.step()
        run.step()
        expected = support.cut(MODEL, {name: weight.detach() for name, weight in run.weights.items()}, 1, 0)
        self.assert_same_tensors({name: parameter.detach() for name, parameter in parameters.items()}, expected)

    def test_another_mesh_goes_on(self):
        run = Run()
        run.save(self.directory / "run", tp=2, dp=3)
        self.reshard("convert", self.directory / "run", self.directory / "out", "--tp", 1, "--dp", 2)
        self.check_goes_on(run, self.directory / "out", 2)

    def test_way_by_dcp_and_other_stages(self):
        run = Run()
        run.save(self.directory / "run", tp=1, dp=2)
        self.reshard("convert", self.directory / "run", self.directory / "two", "--tp", 2, "--pp", 2, "--dp", 5)
        for path in (self.directory / "two/optim").iterdir():
            self.load(path)
        self.reshard("convert", self.directory / "two", self.directory / "dcp", "--to", "dcp", "--with-optimizer",
                     "--fsdp", 3)
        self.reshard("convert", self.directory / "dcp", self.directory / "out", "--to", "nxd", "--tp", 1, "--dp", 1)
        self.check_goes_on(run, self.directory / "out", 1)


if __name__ == "__main__":
    unittest.main()
