"""Shards a qwen3_moe model for NxD Inference with numpy alone, as a script of a few lines does: for comparison.

preshard.py MODEL OUT TP EP writes OUT/weights/tp{R}_sharded_checkpoint.safetensors. Key/value heads are replicated if
there are more ranks than heads. Each rank is written when its tensors have been made.
"""
import glob
import json
import os
import struct
import sys

import numpy as np


def read_tensors(directory):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
        data = np.memmap(path, np.uint8, "r")
        length = int(data[:8].view(np.uint64)[0])
        header = json.loads(bytes(data[8 : 8 + length]))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = data[begin:end].view(np.uint16).reshape(entry["shape"])
    return tensors


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        dtype = "I32" if array.dtype == np.int32 else "BF16"
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def part(array, dim, index, parts):
    size = array.shape[dim] // parts
    return np.take(array, range(index * size, (index + 1) * size), dim) if dim else array[index * size :][:size]


def main(model, out, tp, ep):
    config = json.load(open(os.path.join(model, "config.json")))
    tensors = read_tensors(model)
    kv_heads, head_dim = config["num_key_value_heads"], config["head_dim"]
    os.makedirs(os.path.join(out, "weights"))
    shared, local = tp // ep, config["num_experts"] // ep
    for rank in range(tp):
        number = np.array([rank], np.int32)
        own = {"rank_util.rank": number, "norm.weight": tensors["model.norm.weight"]}
        own["embed_tokens.weight"] = part(tensors["model.embed_tokens.weight"], 1, rank, tp)
        own["lm_head.weight"] = part(tensors["lm_head.weight"], 0, rank, tp)
        for n in range(config["num_hidden_layers"]):
            source, layer = f"model.layers.{n}.", f"layers.{n}."
            for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
                own[layer + norm] = tensors[source + norm]
            attention = layer + "self_attn."
            own[attention + "rank_util.rank"] = number
            own[attention + "qkv_proj.q_proj.weight"] = part(tensors[source + "self_attn.q_proj.weight"], 0, rank, tp)
            for name in ("k", "v"):
                whole = tensors[f"{source}self_attn.{name}_proj.weight"]
                heads = np.repeat(whole.reshape(kv_heads, head_dim, -1), max(1, tp // kv_heads), 0)
                own[f"{attention}qkv_proj.{name}_proj.weight"] = part(heads, 0, rank, tp).reshape(-1, whole.shape[1])
            own[attention + "o_proj.o_proj.weight"] = part(tensors[source + "self_attn.o_proj.weight"], 1, rank, tp)
            for name in ("q", "k"):
                own[f"{attention}{name}_layernorm.weight"] = tensors[f"{source}self_attn.{name}_norm.weight"]
            mlp = layer + "mlp."
            own[mlp + "router.linear_router.weight"] = tensors[source + "mlp.gate.weight"]
            first = rank // shared * local
            expert = [f"{source}mlp.experts.{e}." for e in range(first, first + local)]
            half = lambda name: [part(tensors[e + name], 0, rank % shared, shared).T for e in expert]
            pairs = [np.concatenate(both, 1) for both in zip(half("gate_proj.weight"), half("up_proj.weight"))]
            own[mlp + "expert_mlps.mlp_op.gate_up_proj.weight"] = np.stack(pairs)
            down = [part(tensors[e + "down_proj.weight"], 1, rank % shared, shared).T for e in expert]
            own[mlp + "expert_mlps.mlp_op.down_proj.weight"] = np.stack(down)
            own[mlp + "expert_mlps.spmd_rank.rank"] = number
            if ep > 1:
                indices = np.arange(first, first + local, dtype=np.int32)[None]
                own[mlp + "expert_mlps.spmd_rank.local_expert_indices"] = indices
        write_tensors(os.path.join(out, "weights", f"tp{rank}_sharded_checkpoint.safetensors"), own)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
