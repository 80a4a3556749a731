#!/usr/bin/env python3
"""The documents that --json prints, held against the schemas in docs/schemas by a validator.

    RESHARD_PROGRAM=build/dev/apps/reshard/reshard check_json.py REPOSITORY
"""

import copy
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import jsonschema

REPOSITORY = pathlib.Path(sys.argv.pop(1)).resolve()
PROGRAM = os.environ["RESHARD_PROGRAM"]
GOLDEN = REPOSITORY / "testdata/golden"
MODEL = str(GOLDEN / "optimum/qwen3-tp4-pp3-gqa/original")
OTHER_MODEL = str(GOLDEN / "optimum/llama-tp8-gqa/original")
TRAINED = GOLDEN / "zero1/nxd-llama-dp2-tp2"


def schema_of(name):
    return json.loads((REPOSITORY / f"docs/schemas/{name}.schema.json").read_text(encoding="utf-8"))


def run(*arguments, exit_code=0):
    """The document that the program prints for these arguments, and --json."""
    result = subprocess.run([PROGRAM, *arguments, "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            check=False)
    if result.returncode != exit_code:
        raise AssertionError(f"{arguments}: exit code {result.returncode}: {result.stderr}")
    return json.loads(result.stdout)


class Documents(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)

    def path(self, name):
        return str(self.directory / name)

    def check(self, name, document):
        """The document fits the schema, and does not with a key too many, a key too few, or a number for a text."""
        schema = schema_of(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        validator.validate(document)
        self.assertEqual([one["text"] for one in document.get("findings", [])], document.get("notes", []))
        for change in ({"unknown": 1}, {"command": 1}, {"notes": None}, {"findings": [{"kind": "x", "text": "y"}]}):
            self.assertFalse(validator.is_valid({**document, **change}), change)
        for key in schema["required"]:
            lacking = copy.deepcopy(document)
            del lacking[key]
            self.assertFalse(validator.is_valid(lacking), key)
        return document

    def test_shard(self):
        for options in (["--tp", "4", "--pp", "2"], ["--tp", "2", "--layout", "optimum", "--format", "xser"],
                        ["--tp", "5", "--layout", "presharded", "--pad"], ["--tp", "4", "--layout", "nxdi"],
                        ["--layout", "dcp", "--fsdp", "2"]):
            with self.subTest(options):
                out = self.path("-".join(options))
                planned = self.check("job", run("shard", MODEL, out, *options, "--dry-run"))
                written = self.check("job", run("shard", MODEL, out, *options))
                self.assertEqual(planned["files"], written["files"])

    def test_manifest(self):
        """What --manifest writes is what sha256sum and scripts/check-manifest.py make of it, and verify too."""
        out = self.directory / "out"
        written = self.check("job", run("shard", MODEL, str(out), "--tp", "2", "--manifest"))
        self.assertEqual(written["manifest"], ["reshard.manifest.json", "SHA256SUMS"])
        manifest = str(out / "reshard.manifest.json")
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=out, check=True)
        script = [sys.executable, str(REPOSITORY / "scripts/check-manifest.py"), manifest]
        subprocess.run([*script, MODEL], stdout=subprocess.DEVNULL, check=True)
        self.check("verify-manifest", run("verify", MODEL, "--manifest", manifest))
        self.check("verify-manifest", run("verify", str(out), "--manifest", str(out / "SHA256SUMS")))
        own = self.check("verify-manifest", run("verify", str(out), "--manifest", manifest))
        self.assertEqual([own["missing_files"], own["different_files"]], [[], []])
        digests = self.check("inspect", run("inspect", MODEL, "--digest"))
        tensors = self.check("manifest", json.loads((out / "reshard.manifest.json").read_text()))["tensors"]
        expected = {tensor["name"]: tensor["sha256"] for tensor in tensors}
        self.assertEqual({tensor["name"]: tensor["sha256"] for tensor in digests["tensors"]}, expected)

        other = self.check("verify-manifest", run("verify", OTHER_MODEL, "--manifest", manifest, exit_code=1))
        self.assertTrue(other["only_in_manifest"])
        (out / "config.json").write_text("{}")
        changed = self.check("verify-manifest",
                             run("verify", str(out), "--manifest", str(out / "SHA256SUMS"), exit_code=1))
        self.assertEqual(changed["different_files"], ["config.json"])

    def test_manifest_of_a_training_run(self):
        """What is beside the model has a role, and is compared where it is read."""
        run_directory, out, whole = str(GOLDEN / "dcp/llama-fsdp2-optim/sharded"), self.path("out"), self.path("whole")
        run("convert", run_directory, out, "--to", "dcp", "--with-optimizer", "--prefix", "model", "--manifest")
        run("convert", run_directory, whole)
        manifest = out + "/reshard.manifest.json"
        document = self.check("manifest", json.loads(pathlib.Path(manifest).read_text(encoding="utf-8")))
        roles = [tensor.get("role", "parameter") for tensor in document["tensors"]]
        self.assertEqual([roles.count(role) for role in ("parameter", "state", "object")], [21, 63, 13])
        for given, options, compared, left in ((out, ["--with-optimizer"], 97, 0), (out, [], 21, 76),
                                               (whole, [], 21, 76)):
            with self.subTest(given=given, options=options):
                found = self.check("verify-manifest", run("verify", given, "--manifest", manifest, *options))
                self.assertEqual([found["tensors"], found["states_not_compared"]], [compared, left])
                self.assertEqual(sum("not compared" in note for note in found["notes"]), 1 if left else 0)
                self.assertEqual(sum("--with-optimizer compares them" in note for note in found["notes"]),
                                 1 if left and given == out else 0)
        script = [sys.executable, str(REPOSITORY / "scripts/check-manifest.py"), manifest, whole]
        printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
        self.assertEqual(printed, "not compared, as they are beside the model: 76 entries\nsame: 21 tensors\n")

    def test_manifest_of_large_tensors(self):
        """Leaves of tensors of several dims are where the script has them."""
        tensors = {"a": [3000, 1000], "b": [1, 3, 1700, 700], "c": [2, 2500000], "d": [], "e": [0, 4], "f": [7]}
        header, data = {}, bytearray()
        for name, shape in tensors.items():
            size = 2
            for dim in shape:
                size *= dim
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + size]}
            data += os.urandom(size)
        text = json.dumps(header).encode()
        model = self.directory / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        run("convert", str(model), self.path("out"), "--manifest")
        manifest = self.path("out") + "/reshard.manifest.json"
        script = [sys.executable, str(REPOSITORY / "scripts/check-manifest.py"), manifest]
        subprocess.run([*script, str(model)], stdout=subprocess.DEVNULL, check=True)
        data[5000] ^= 1
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        self.assertEqual(subprocess.run([*script, str(model)], capture_output=True, check=False).returncode, 1)
        found = self.check("verify-manifest", run("verify", str(model), "--manifest", manifest, exit_code=1))
        self.assertEqual([(one["name"], one["leaves"], one["differing"]) for one in found["different"]], [("a", 2, [0])])

    def test_consolidate_and_convert(self):
        shards = self.path("shards")
        run("shard", MODEL, shards, "--tp", "4", "--pp", "2")
        self.check("job", run("consolidate", shards, self.path("whole"), "--dry-run"))
        self.check("job", run("consolidate", shards, self.path("whole")))
        unchecked = self.check("job", run("consolidate", shards, self.path("unchecked"), "--no-check-replicas"))
        self.assertGreater(unchecked["bytes"]["not_read"], 0)
        half = self.check("job", run("convert", shards, self.path("half"), "--dtype", "float16", "--drop", "lm"))
        self.assertGreater(half["bytes"]["dropped"], 0)

    def test_a_model_of_no_known_type(self):
        document = self.check("job", run("convert", str(pathlib.Path(MODEL) / "model.safetensors"), self.path("out"),
                                         "--keep", "norm"))
        self.assertIn("model_type", document)

    def test_replicas_that_differ(self):
        """A norm of rank 1 is changed, so that replicas differ."""
        shards = self.path("shards")
        run("shard", MODEL, shards, "--tp", "2", "--format", "safetensors")
        file = next(pathlib.Path(shards).glob("*/tp_rank_01*/model.safetensors"))
        content = bytearray(file.read_bytes())
        length = int.from_bytes(content[:8], "little")
        begin = json.loads(content[8:8 + length])["model.norm.weight"]["data_offsets"][0]
        content[8 + length + begin + 1] ^= 0x40
        file.write_bytes(content)
        document = self.check("job", run("consolidate", shards, self.path("whole"), "--replicas", "first"))
        self.assertEqual([one["tensor"] for one in document["divergent_replicas"]], ["model.norm.weight"])
        self.check("verify", run("verify", shards, MODEL, "--replicas", "first"))

    def test_inspect(self):
        shards = self.path("shards")
        run("shard", MODEL, shards, "--tp", "2", "--pp", "2")
        for arguments in ([MODEL], [MODEL, "--stats"], [shards, "--stats"], [shards, "--filter", "nothing"],
                          [str(pathlib.Path(MODEL) / "model.safetensors")],
                          [str(TRAINED / "checkpoint"), "--config", str(TRAINED / "original")],
                          [str(GOLDEN / "dcp/llama-fsdp2-optim/sharded")],
                          [str(GOLDEN / "lora/llama-tp2-two-adapters/original")],
                          [str(GOLDEN / "lora/llama-tp2-two-adapters/sharded/adapter_test")]):
            with self.subTest(arguments):
                self.check("inspect", run("inspect", *arguments))
        adapters = str(GOLDEN / "lora/llama-tp2-two-adapters/sharded")
        document = self.check("inspect-adapters", run("inspect", adapters))
        self.assertEqual([one["name"] for one in document["adapters"]], ["default", "test"])

    def test_inspect_pickle(self):
        document = self.check("inspect-pickle", run("inspect", "--pickle", str(GOLDEN / "dcp/llama-fsdp2-optim/sharded")))
        self.assertIn("torch.distributed.checkpoint.metadata.TensorStorageMetadata",
                      [one["name"] for one in document["names"]])

    def test_verify(self):
        half = self.path("half")
        run("convert", MODEL, half, "--dtype", "float16", "--drop", "lm_head")
        self.assertTrue(self.check("verify", run("verify", MODEL, MODEL))["same"])
        for arguments in ([MODEL, half], [MODEL, half, "--rtol", "0.01"], [MODEL, OTHER_MODEL]):
            with self.subTest(arguments):
                self.assertFalse(self.check("verify", run("verify", *arguments, exit_code=1))["same"])

    def test_version_and_doctor(self):
        version = self.check("version", run("version"))
        doctor = self.check("doctor", run("doctor", str(self.directory)))
        self.assertEqual(doctor["build"], version["build"])
        self.check("doctor", run("doctor", "/proc"))
        self.check("doctor", run("doctor", str(self.directory / "none")))

    def test_progress(self):
        for command in (["shard", MODEL, self.path("out"), "--tp", "2"], ["verify", MODEL, MODEL],
                        ["inspect", MODEL, "--stats"]):
            with self.subTest(command):
                result = subprocess.run([PROGRAM, *command, "--progress", "json", "--quiet"], stdin=subprocess.DEVNULL,
                                        capture_output=True, text=True, check=True)
                lines = result.stderr.splitlines()
                self.assertGreaterEqual(len(lines), 2)
                for line in lines:
                    self.check("progress", json.loads(line))


if __name__ == "__main__":
    unittest.main()
