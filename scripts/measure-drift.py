#!/usr/bin/env python3
"""How far replicas of norms drift apart when NxD trains a bfloat16 model without sequence parallelism.

NxD 0.18 leaves the input gradient of column-parallel layers unreduced in that case, so that each tensor-parallel rank trains
the replicated parameters with its own part of the gradient. This trains a small Llama on the bytes of text files in the same way,
all ranks in one process, and prints, step by step, how far the norms of the ranks are apart, beside distances of weights that are
not replicas: other layers' norms, the same norms at other steps, exchanged key/value heads.

    scripts/measure-drift.py --tp 4 --lr 1e-3 --steps 1000 --save trained.pt TEXT_FILE...
    scripts/measure-drift.py --tp 2 --lr 1e-5 --steps 300 --start trained.pt TEXT_FILE...

Needs torch. The figures in docs/replicas.md are from it.
"""

import argparse
import math
from pathlib import Path

import torch

HIDDEN, LAYERS, VOCABULARY, HEADS, HEAD_DIM, INTERMEDIATE, LENGTH, BATCH = 64, 3, 256, 4, 16, 128, 32, 8
MARKS = (1, 3, 10, 30, 100, 300, 1000, 2000, 3000, 5000, 10000)
NORMS = [f"{layer}.{norm}" for layer in range(LAYERS) for norm in ("attention", "mlp")] + ["last"]


def bfloat16(tensor):
    return tensor.bfloat16().float()


def new_weights(tp):
    shapes = {"embedding": (VOCABULARY, HIDDEN), "head": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        shapes.update({f"{layer}.{name}": (HIDDEN, HIDDEN) for name in "qkvo"})
        shapes.update({f"{layer}.gate": (INTERMEDIATE, HIDDEN), f"{layer}.up": (INTERMEDIATE, HIDDEN)})
        shapes[f"{layer}.down"] = (HIDDEN, INTERMEDIATE)
    weights = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
    weights.update({f"{norm}/{rank}": torch.ones(HIDDEN) for norm in NORMS for rank in range(tp)})
    return weights


def start_from(path, tp):
    trained = torch.load(path)
    weights = {name: tensor for name, tensor in trained.items() if "/" not in name}
    weights.update({f"{norm}/{rank}": trained[f"{norm}/0"].clone() for norm in NORMS for rank in range(tp)})
    return weights


def rms_norm(values, weight):
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


ANGLES = torch.outer(torch.arange(LENGTH).float(), 1e4 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
MASK = torch.triu(torch.full((LENGTH, LENGTH), -1e9), 1)


def rotate(values):
    even, odd = values[..., ::2], values[..., 1::2]
    return torch.cat([even * ANGLES.cos() - odd * ANGLES.sin(), even * ANGLES.sin() + odd * ANGLES.cos()], -1)


def add_parts(states, parts):
    """The all-reduce of row-parallel layers: the sum for every rank, of which each differentiates its own part alone."""
    total = sum(part.detach() for part in parts)
    return [state + part + (total - part.detach()) for state, part in zip(states, parts)]


def loss_of(weights, tp, tokens, targets):
    states = [weights["embedding"][tokens]] * tp
    for layer in range(LAYERS):
        parts = []
        for rank in range(tp):
            values = rms_norm(states[rank], weights[f"{layer}.attention/{rank}"])
            own = slice(rank * HIDDEN // tp, (rank + 1) * HIDDEN // tp)
            query, key, value = (
                (values @ weights[f"{layer}.{name}"][own].t()).view(BATCH, LENGTH, HEADS // tp, HEAD_DIM).transpose(1, 2)
                for name in "qkv"
            )
            scores = rotate(query) @ rotate(key).transpose(-1, -2) / math.sqrt(HEAD_DIM) + MASK
            mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(BATCH, LENGTH, -1)
            parts.append(mixed @ weights[f"{layer}.o"][:, own].t())
        states = add_parts(states, parts)
        parts = []
        for rank in range(tp):
            values = rms_norm(states[rank], weights[f"{layer}.mlp/{rank}"])
            own = slice(rank * INTERMEDIATE // tp, (rank + 1) * INTERMEDIATE // tp)
            gate = torch.nn.functional.silu(values @ weights[f"{layer}.gate"][own].t())
            parts.append((gate * (values @ weights[f"{layer}.up"][own].t())) @ weights[f"{layer}.down"][:, own].t())
        states = add_parts(states, parts)
    rows = VOCABULARY // tp
    logits = [
        rms_norm(states[rank], weights[f"last/{rank}"]) @ weights["head"][rank * rows : (rank + 1) * rows].t()
        for rank in range(tp)
    ]
    return torch.nn.functional.cross_entropy(torch.cat(logits, -1).view(-1, VOCABULARY), targets.reshape(-1))


def relative(a, b):
    return float((a - b).norm() / max(a.norm(), b.norm()))


def report_drift(step, loss, weights, tp):
    distances, largest, element = [], 0.0, 0.0
    for norm in NORMS:
        first = weights[f"{norm}/0"]
        for rank in range(1, tp):
            other = weights[f"{norm}/{rank}"]
            apart = (first - other).abs()
            distances.append(relative(first, other))
            largest = max(largest, float(apart.max()))
            element = max(element, float((apart / torch.maximum(first.abs(), other.abs())).max()))
    print(
        f"step {step}: loss {loss:.3f}, replicas that differ {sum(d > 0 for d in distances)} of {len(distances)}, "
        f"distance {min(distances):.4f} to {max(distances):.4f}, element by {largest:.4f} or {element:.3f} of itself",
        flush=True,
    )


def report_others(snapshots):
    last_step = max(snapshots)
    last = snapshots[last_step]
    layers = sorted(relative(last[f"{a}/0"], last[f"{b}/0"]) for a in NORMS for b in NORMS if a < b)
    print(f"norms of other layers: {layers[0]:.4f} to {layers[-1]:.4f}")
    for step in sorted(snapshots)[:-1]:
        apart = sorted(relative(last[f"{norm}/0"], snapshots[step][f"{norm}/0"]) for norm in NORMS)
        print(f"norms at step {step} and {last_step}: {apart[0]:.4f} to {apart[-1]:.4f}")
    heads = [
        relative(last[f"{layer}.{name}"][a * HEAD_DIM : (a + 1) * HEAD_DIM], last[f"{layer}.{name}"][b * HEAD_DIM : (b + 1) * HEAD_DIM])
        for layer in range(LAYERS)
        for name in "kv"
        for a in range(HEADS)
        for b in range(a)
    ]
    print(f"other key/value heads: {min(heads):.4f} to {max(heads):.4f}")


def train(options):
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    text = torch.tensor(list(b"".join(path.read_bytes() for path in options.text)))
    masters = start_from(options.start, options.tp) if options.start else new_weights(options.tp)
    masters = {name: bfloat16(tensor) for name, tensor in masters.items()}
    means = {name: torch.zeros_like(tensor) for name, tensor in masters.items()}
    squares = {name: torch.zeros_like(tensor) for name, tensor in masters.items()}
    snapshots = {}
    for step in range(1, options.steps + 1):
        begins = torch.randint(0, len(text) - LENGTH - 1, (BATCH,))
        tokens = torch.stack([text[i : i + LENGTH] for i in begins])
        targets = torch.stack([text[i + 1 : i + LENGTH + 1] for i in begins])
        weights = {name: bfloat16(tensor).requires_grad_() for name, tensor in masters.items()}
        loss = loss_of(weights, options.tp, tokens, targets)
        loss.backward()
        rate = options.lr * min(1, step / max(1, min(100, options.steps // 10)))
        with torch.no_grad():  # AdamW on float32 master weights, the gradient clipped to a length of 1
            length = math.sqrt(sum(float(weight.grad.pow(2).sum()) for weight in weights.values()))
            for name, weight in weights.items():
                gradient = bfloat16(weight.grad) * min(1, 1 / (length + 1e-6))
                means[name].mul_(0.9).add_(gradient, alpha=0.1)
                squares[name].mul_(0.95).addcmul_(gradient, gradient, value=0.05)
                update = (means[name] / (1 - 0.9**step)) / ((squares[name] / (1 - 0.95**step)).sqrt() + 1e-8)
                if masters[name].dim() > 1:
                    masters[name].mul_(1 - rate * 0.1)
                masters[name].sub_(update, alpha=rate)
        if step in MARKS or step == options.steps:
            snapshots[step] = {name: bfloat16(tensor) for name, tensor in masters.items()}
            report_drift(step, float(loss), snapshots[step], options.tp)
    report_others(snapshots)
    if options.save:
        torch.save(masters, options.save)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", type=Path, help="files of text to train on")
    parser.add_argument("--tp", type=int, default=2, help="tensor-parallel ranks: 2 or 4")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate after the warm-up")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", help="weights that an earlier run saved")
    parser.add_argument("--save", help="file for the trained weights")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
