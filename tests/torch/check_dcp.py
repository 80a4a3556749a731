#!/usr/bin/env python3
"""Checkpoints of torch.distributed.checkpoint that the program writes, loaded by the torch of this machine (2.2 or later).

    RESHARD_PROGRAM=… check_dcp.py [TEST]
"""

import os
import socket
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import support
from support import DTYPES, random_tensor

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
RANKS = 4
SIZES = {"first": (13, 7), "second": (2, 13), "third": (32, 2)}  # rows that four ranks do not divide, and too few


def layers():
    return torch.nn.ModuleDict({name: torch.nn.Linear(size[1], size[0]) for name, size in SIZES.items()})


def load_on_rank(rank, port, directory, expected):
    """Loads into a model that is sharded over all ranks, and compares every rank's part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), USE_LIBUV="0", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
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


class Loaded(support.TestCase):
    def write(self, tensors, *options):
        support.write_safetensors(self.directory / "in.safetensors", tensors)
        self.reshard("convert", self.directory / "in.safetensors", self.directory / "out", "--to", "dcp", *options)
        return str(self.directory / "out")

    def test_every_dtype_and_shape_in_one_process(self):
        tensors = {f"{name}.{'x'.join(map(str, shape))}": random_tensor(shape, dtype)
                   for name, dtype in DTYPES.items() for shape in ((3, 5), (), (0,), (4, 0, 2), (7,), (2, 3, 1, 2))}
        for options in ((), ("--fsdp", "3")):
            directory = self.write(tensors, *options, "--force")
            state = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
            dcp.load(state, checkpoint_id=directory)
            self.assert_same_tensors(state, tensors)

    def test_as_one_file_with_the_nesting_of_the_prefix(self):
        tensors = {f"layers.{i}.weight": random_tensor((5, 3), torch.float32) for i in range(300)}
        directory = self.write(tensors, "--fsdp", "2", "--prefix", "state_dict.model")
        dcp_to_torch_save(directory, self.directory / "whole.pt")
        state = torch.load(self.directory / "whole.pt", weights_only=True)
        self.assert_same_tensors(state["state_dict"]["model"], tensors)

    @unittest.skipIf(VERSION < (2, 6), "fully_shard is not in torch.distributed.fsdp yet")
    def test_by_four_ranks_of_fully_shard(self):
        torch.manual_seed(1)
        expected = layers().state_dict()
        directory = self.write(dict(expected), "--fsdp", "3", "--prefix", "model.")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(load_on_rank, (port, directory, expected), nprocs=RANKS)


if __name__ == "__main__":
    unittest.main()
