#!/usr/bin/env python3
"""Kills the program of BUILD at each system call with which it publishes outputs, and has a person put files of their own
under the names of outputs before the next command. No such file may be lost, and the same command must then publish its
outputs, and leave nothing else.

    scripts/test-kills.py BUILD          one of 8 system calls
    scripts/test-kills.py BUILD 1        all of them

Needs strace. Works in a temporary directory that goes away at the end.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

CALLS = ["rename", "renameat2", "unlinkat", "rmdir", "mkdir", "fsync", "pwrite64", "chmod"]
MINE = b"a person's file"


def run(program, *words, inject=None):
    command = [program, *map(str, words)]
    if inject:
        call = inject.split(":")[0]
        command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={inject}", *command]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def files(folder):
    return [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]


def read(path):
    with open(path, "rb") as file:
        return file.read()


def sums(folder):
    return {os.path.relpath(path, folder): hashlib.sha256(read(path)).hexdigest() for path in files(folder)}


def mine(folder):
    return [path for path in files(folder) if read(path) == MINE]


def fail(text, process=None):
    if process:
        text += f"\n{process.stdout}{process.stderr}"
    sys.exit(f"test-kills.py: {text}")


class Case:
    """A command with --force into a directory with older outputs."""

    def __init__(self, program, work, name, words, older, stays):
        self.program, self.work, self.name, self.words, self.stays = program, work, name, words, stays
        self.out = os.path.join(work, "outer", "out")
        self.start = os.path.join(work, name + "-start")
        self.command(older, self.start)
        wanted = os.path.join(work, name + "-wanted")
        self.command(words, wanted)
        self.names = sorted(sums(wanted))
        self.wanted = sums(wanted)
        if stays:
            with open(os.path.join(self.start, "notes.txt"), "w") as file:
                file.write("stays")
            self.wanted["notes.txt"] = hashlib.sha256(b"stays").hexdigest()

    def command(self, words, out, *more):
        done = run(self.program, *words, out, "--quiet", *more)
        if done.returncode != 0:
            fail(f"{self.name}: exit code {done.returncode}", done)

    def kill(self, call, number):
        """Returns whether the program was killed at this call."""
        shutil.rmtree(os.path.dirname(self.out), ignore_errors=True)
        shutil.copytree(self.start, self.out)
        inject = f"{call}:signal=KILL:when={number}"
        killed = run(self.program, *self.words, self.out, "--quiet", "--force", inject=inject)
        return killed.returncode != 0

    def check(self, call, number):
        what = f"{self.name}, killed at {call} {number}"
        free = [name for name in self.names if not os.path.lexists(os.path.join(self.out, name))]
        made = [name for name in free if os.path.isdir(os.path.dirname(os.path.join(self.out, name)))]
        for name in made:
            with open(os.path.join(self.out, name), "wb") as file:
                file.write(MINE)
        outer = os.path.dirname(self.out)
        next_run = run(self.program, *self.words, self.out, "--quiet")
        if next_run.returncode == 0:
            fail(f"{what}: outputs were replaced without --force")
        if len(mine(outer)) != len(made):
            fail(f"{what}: {len(made)} files of a person, {len(mine(outer))} left", next_run)
        if made and not os.path.exists(self.out):
            fail(f"{what}: the output directory is gone", next_run)
        for path in mine(outer):
            os.remove(path)
        again = run(self.program, *self.words, self.out, "--quiet", "--force", "--clean")
        if again.returncode != 0:
            fail(f"{what}: the same command does not go on", again)
        if sums(self.out) != self.wanted:
            fail(f"{what}: other outputs: {sorted(set(sums(self.out)) ^ set(self.wanted))}", again)
        if os.listdir(outer) != ["out"]:
            fail(f"{what}: left {os.listdir(outer)}", again)
        return len(made)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: scripts/test-kills.py BUILD [STEP]")
    if shutil.which("strace") is None:
        sys.exit("test-kills.py: strace is not installed")
    build, step = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 8
    program = os.path.join(build, "apps/reshard/reshard")
    with tempfile.TemporaryDirectory(prefix="reshard-kills-") as work:
        for seed in 1, 2:
            size = ["--hidden", "64", "--intermediate", "128", "--layers", "2", "--vocab", "256", "--seed", str(seed)]
            made = run(os.path.join(build, "apps/tools/make_model"), f"{work}/model-{seed}", *size)
            if made.returncode != 0:
                fail("make_model", made)
        whole = [["convert", f"{work}/model-{seed}", "--max-shard-size", "100KB"] for seed in (1, 2)]
        ranks = [["shard", f"{work}/model-{seed}", "--format", "xser", "--tp", str(tp)] for seed, tp in ((1, 4), (2, 2))]
        cases = [
            Case(program, work, "whole", whole[1], whole[0], True),
            Case(program, work, "whole-swapped", whole[1], whole[0], False),
            Case(program, work, "ranks", ranks[1], ranks[0], True),
            Case(program, work, "ranks-swapped", ranks[1], ranks[0], False),
        ]
        kills = foreign = 0
        for case in cases:
            for call in CALLS:
                number = 1
                while case.kill(call, number):
                    foreign += case.check(call, number)
                    kills += 1
                    number += step
    print(f"{kills} runs were killed at system calls; none of {foreign} files of a person was lost")


if __name__ == "__main__":
    main()
