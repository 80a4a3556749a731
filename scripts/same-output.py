#!/usr/bin/env python3
"""Compares what two builds of reshard make of the same checkpoints: outputs, texts, exit codes, fingerprints.

  scripts/same-output.sh OLD NEW                  all cases of testdata/golden
  scripts/same-output.sh OLD NEW --no-texts       bytes, exit codes and fingerprints alone
  scripts/same-output.sh OLD NEW --share 20       a twentieth of the runs, other ones for each --seed
  scripts/same-output.sh OLD NEW --part 2/4       the second quarter of the runs
  scripts/same-output.sh OLD NEW --only 'lora'    the runs whose command line this regular expression is found in
  scripts/same-output.sh OLD NEW --giants DIR     also plans two checkpoints of thousands of files, which it makes in DIR
                                                  (6 GB) with BUILD/apps/tools, and compares time and memory

OLD and NEW are programs. Each directory under testdata/golden is read as if it were a checkpoint. What is one by OLD is
converted to each layout that is written, with the options of VARIANTS. A run that is refused has to be refused alike.
Exit code 1 if anything differs.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

LAYOUTS = ["hf", "ranks", "optimum", "nxd", "presharded", "nxdi", "vllm", "dcp"]
WITHOUT_TP = {"hf", "dcp"}
VARIANTS = [
    ["--tp", "1"],
    ["--tp", "2"],
    ["--tp", "4"],
    ["--tp", "2", "--pp", "2"],
    ["--tp", "2", "--dtype", "float32"],
    ["--tp", "2", "--with-optimizer"],
    ["--tp", "2", "--format", "pytorch"],
    ["--tp", "2", "--dry-run"],
    ["--tp", "2", "--dry-run", "--json"],
    ["--tp", "2", "--json"],
]
MEASURED = [  # what differs from run to run
    (re.compile(r"[\d.]+ s, [\d.]+ GB/s, peak memory [\d.]+ \w+"), "TIME"),
    (re.compile(r"[\d.]+ [kMGT]?B free on \S+"), "FREE"),
    (re.compile(r'"(free|seconds|planning_seconds|[a-z_]*peak[a-z_]*|[a-z_]*per_second|threads)": [\d.e+-]+'), "MEASURED"),
]


def is_checkpoint(program, folder):
    done = subprocess.run([program, "inspect", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def commands(program, golden):
    folders = sorted(folder for folder, _, _ in os.walk(golden))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        readable = list(pool.map(lambda folder: is_checkpoint(program, folder), folders))
    for folder, is_read in zip(folders, readable):
        yield ["inspect", folder, "--json"]
        yield ["consolidate", folder, "out"]
        yield ["convert", folder, "out"]
        yield ["shard", folder, "out", "--tp", "2"]
        if not is_read:
            continue
        yield ["inspect", folder]
        yield ["inspect", folder, "--tensors", "--digest"]
        yield ["verify", folder, folder]
        for layout in LAYOUTS:
            seen = set()
            for variant in VARIANTS:
                options = list(variant)
                if layout in WITHOUT_TP:
                    for name in ("--tp", "--pp"):
                        if name in options:
                            del options[options.index(name) : options.index(name) + 2]
                    if layout == "dcp":
                        options += ["--fsdp", "3"]
                if tuple(options) not in seen:
                    seen.add(tuple(options))
                    yield ["convert", folder, "out", "--to", layout] + options


def digest_of(root):
    """The relative path of each file under `root` and a hash of its bytes; folders count, too."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in folders:
            found[os.path.relpath(os.path.join(folder, name), root)] = "folder"
        for name in files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[os.path.relpath(path, root)] = "link to " + os.readlink(path)
                continue
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def without_measures(text):
    for pattern, word in MEASURED:
        text = pattern.sub(word, text)
    return text


def run(program, arguments, folder):
    """What a run leaves: exit code, files and their hashes, texts, fingerprint."""
    shutil.rmtree(os.path.join(folder, "out"), ignore_errors=True)
    environment = dict(os.environ, COLUMNS="100", NO_COLOR="1", LC_ALL="C.UTF-8")
    done = subprocess.run([program] + arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=600)
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    fingerprint = None
    if "--dry-run" in arguments and "--json" in arguments and done.returncode == 0:
        fingerprint = json.loads(out).get("fingerprint")
    left = [name for name in os.listdir(folder) if name not in ("golden", "out")]
    return {
        "exit code": done.returncode,
        "files": digest_of(os.path.join(folder, "out")),
        "left": sorted(left),
        "fingerprint": fingerprint,
        "text": (without_measures(out), without_measures(err)),
    }


def differences(old, new, texts):
    for key in ("exit code", "left"):
        if old[key] != new[key]:
            yield f"{key}: {old[key]} and {new[key]}"
    if None not in (old["fingerprint"], new["fingerprint"]) and old["fingerprint"] != new["fingerprint"]:
        yield f"fingerprint: {old['fingerprint']} and {new['fingerprint']}"
    for path in sorted(set(old["files"]) | set(new["files"])):
        a, b = old["files"].get(path, "missing"), new["files"].get(path, "missing")
        if a != b:
            yield f"{path}: {a[:12]} and {b[:12]}"
    if texts:
        for name, a, b in zip(("stdout", "stderr"), old["text"], new["text"]):
            if a != b:
                yield f"{name}:\n" + "".join(f"    - {line}\n" for line in a.splitlines() if line not in b.splitlines()) \
                    + "".join(f"    + {line}\n" for line in b.splitlines() if line not in a.splitlines())


def compare(arguments, old, new, golden, texts):
    # Outputs are flushed before they get their names, which costs nothing in memory.
    memory = "/dev/shm" if "TMPDIR" not in os.environ and os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="same-output-", dir=memory) as folder:
        os.symlink(golden, os.path.join(folder, "golden"))
        results = [run(program, arguments, folder) for program in (old, new)]
        written = len(results[0]["files"]) + len(results[1]["files"]) > 0
        return list(differences(*results, texts)), written


def measured(program, arguments):
    """Seconds and peak memory in MiB of a run that has to succeed: the least of three."""
    seconds, mebibytes, fingerprint = [], [], None
    for _ in range(3):
        begin = time.monotonic()
        # The child's own peak: a process of its own tells it.
        code = (
            "import resource,subprocess,sys;"
            "done=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE);"
            "sys.stdout.buffer.write(done.stdout);"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,file=sys.stderr);sys.exit(done.returncode)"
        )
        done = subprocess.run([sys.executable, "-c", code, program] + arguments, capture_output=True, check=False)
        if done.returncode != 0:
            sys.exit(f"same-output: {program} {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr.decode()}")
        seconds.append(time.monotonic() - begin)
        mebibytes.append(int(done.stderr.split()[-1]) / 1024)
        fingerprint = json.loads(done.stdout).get("fingerprint")
    return min(seconds), min(mebibytes), fingerprint


def make_giants(new, tools, folder):
    """A dcp of 2,048 ranks with 1,200 tensors, and a training checkpoint of NxD with states on tp 32, pp 8, dp 64."""
    dcp, nxd = os.path.join(folder, "dcp"), os.path.join(folder, "nxd")
    if not os.path.isdir(dcp):
        source = os.path.join(folder, "tensors.safetensors")
        header, tensors, rows = {}, 1200, 2048
        for i in range(tensors):
            header[f"block.{i // 12}.part_{i % 12}.weight"] = {
                "dtype": "BF16", "shape": [rows, 1], "data_offsets": [2 * rows * i, 2 * rows * (i + 1)]}
        text = json.dumps(header).encode()
        with open(source, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + 2 * rows * tensors)
        subprocess.run([new, "convert", source, dcp, "--to", "dcp", "--fsdp", "2048", "--quiet"], check=True)
        os.remove(source)
    if not os.path.isdir(nxd):
        model, states = os.path.join(folder, "model"), os.path.join(folder, "states")
        for made, option in ((model, []), (states, ["--adam"])):
            subprocess.run([os.path.join(tools, "make_model"), made, "--layers", "16", "--hidden", "128", "--heads", "32"]
                           + option, check=True)
        subprocess.run([os.path.join(tools, "make_training"), states, model, nxd, "--tp", "32", "--pp", "8", "--dp", "64"],
                       check=True)
        shutil.rmtree(model)
        shutil.rmtree(states)
    return {
        "dcp, 2,048 ranks, 1,200 tensors": ["convert", dcp, os.path.join(folder, "out"), "--to", "hf"],
        "nxd, tp 32, pp 8, dp 64, states": ["convert", nxd, os.path.join(folder, "out"), "--tp", "16", "--pp", "4", "--dp", "32",
                                            "--with-optimizer"],
    }


def compare_giants(old, new, tools, folder):
    different = 0
    print(f"{'planning':34}{'old':>18}{'new':>18}{'time':>8}{'memory':>8}")
    for name, arguments in make_giants(new, tools, folder).items():
        arguments = arguments + ["--dry-run", "--json", "--quiet"]
        a, b = measured(old, arguments), measured(new, arguments)
        print(f"{name:34}{a[0]:7.2f} s {a[1]:5.0f} MiB{b[0]:7.2f} s {b[1]:5.0f} MiB{b[0] / a[0]:8.2f}{b[1] / a[1]:8.2f}")
        if None not in (a[2], b[2]) and a[2] != b[2]:
            print(f"  fingerprint: {a[2]} and {b[2]}")
            different += 1
    return different


def main():
    parser = argparse.ArgumentParser(prog="same-output.sh", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--golden", default="testdata/golden")
    parser.add_argument("--no-texts", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--giants", metavar="DIR")
    parser.add_argument("--tools", default="build/release/apps/tools")
    arguments = parser.parse_args()
    old, new = os.path.abspath(arguments.old), os.path.abspath(arguments.new)
    golden = os.path.abspath(arguments.golden)
    tools = os.path.abspath(arguments.tools)
    giants = arguments.giants and os.path.abspath(arguments.giants)
    os.chdir(os.path.dirname(golden))
    all_runs = [one for one in commands(old, "golden") if re.search(arguments.only, " ".join(one))]
    part, parts = map(int, arguments.part.split("/"))
    if not 1 <= part <= parts:
        sys.exit(f"same-output: --part {arguments.part} is not K/N with K from 1 to N")
    all_runs = all_runs[part - 1 :: parts]
    if arguments.share > 1:
        print(f"seed {arguments.seed}")
        all_runs = random.Random(arguments.seed).sample(all_runs, max(1, len(all_runs) // arguments.share))
    if not all_runs:
        sys.exit("same-output: no run is called so")
    different = with_output = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        pending = {pool.submit(compare, one, old, new, golden, not arguments.no_texts): one for one in all_runs}
        for done in concurrent.futures.as_completed(pending):
            lines, written = done.result()
            with_output += written
            different += bool(lines)
            if lines:
                print("\n  ".join(["reshard " + " ".join(pending[done])] + lines[:20]), flush=True)
    print(f"{len(all_runs)} runs, {with_output} of them with an output; {different} differ", flush=True)
    if giants:
        os.makedirs(giants, exist_ok=True)
        different += compare_giants(old, new, tools, giants)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
