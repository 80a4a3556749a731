#!/usr/bin/env python3
"""The published schema of families, judged by a validator: built-in families fit it, documents with a mistake do not.

    check_families.py lib/reshard/specs
"""

import copy
import json
import pathlib
import sys
import unittest

import jsonschema

SPECS = pathlib.Path(sys.argv.pop(1))


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


SCHEMA = read(SPECS / "family.schema.json")
VALID = {
    "model_type": "mine",
    "layers": "model.layers",
    "defaults": {"tie_word_embeddings": False, "head_dim": {"absent": "dim / heads", "null": 64}},
    "modules": [
        {"name": "model.layers.*.qkv", "plan": "packed_colwise", "shape": ["3 * dim", "dim"],
         "packed": ["dim", {"size": "dim", "count": "2", "plan": "replicate"}]},
        {"name": "head", "plan": "colwise", "shape": ["vocab", 64], "stage": "last"},
    ],
}


def set_at(*way, to):
    """The valid document with one value in it changed, or removed where `to` is ..."""
    document = copy.deepcopy(VALID)
    place = document
    for step in way[:-1]:
        place = place[step]
    if to is ...:
        del place[way[-1]]
    else:
        place[way[-1]] = to
    return document


# A mistake, and the place that the validator is to blame.
MISTAKES = {
    "no model_type": (set_at("model_type", to=...), []),
    "no modules": (set_at("modules", to=...), []),
    "an unknown key": (set_at("layer", to="model.layers"), []),
    "a plan that is no word of plans": (set_at("modules", 1, "plan", to="columnwise"), ["modules", 1, "plan"]),
    "a module without a plan": (set_at("modules", 1, "plan", to=...), ["modules", 1]),
    "an unknown key of a module": (set_at("modules", 1, "biass", to="always"), ["modules", 1]),
    "a negative size": (set_at("modules", 1, "shape", to=[-64, "dim"]), ["modules", 1, "shape", 0]),
    "a size that is no whole number": (set_at("modules", 1, "shape", to=[6.5, "dim"]), ["modules", 1, "shape", 0]),
    "a size that is no expression": (set_at("modules", 1, "shape", to=[["dim"], "dim"]), ["modules", 1, "shape", 0]),
    "a shape that is no list": (set_at("modules", 1, "shape", to="dim"), ["modules", 1, "shape"]),
    "a stage in the middle": (set_at("modules", 1, "stage", to="middle"), ["modules", 1, "stage"]),
    "a negative dim": (set_at("modules", 1, "dim", to=-1), ["modules", 1, "dim"]),
    "nothing packed": (set_at("modules", 0, "packed", to=[]), ["modules", 0, "packed"]),
    "a packed matrix without a size": (set_at("modules", 0, "packed", 1, "size", to=...), ["modules", 0, "packed", 1]),
    "a default of half a kind": (set_at("defaults", "head_dim", "null", to=...), ["defaults", "head_dim"]),
    "one linear to join": (set_at("fused", to=[{"module": "model.layers.*", "name": "ab", "linears": ["a"]}]),
                           ["fused", 0, "linears"]),
    "an entry of NxD Inference without a name": (set_at("nxd_inference", to={"entries": [{"parameters": "q.weight"}]}),
                                                 ["nxd_inference", "entries", 0]),
    "another program without entries": (set_at("other_names", to=[{"program": "torchtitan"}]), ["other_names", 0]),
    "an entry without a name": (set_at("other_names", to=[{"program": "p", "entries": [{"parameters": "q.weight"}]}]),
                                ["other_names", 0, "entries", 0]),
    "dims without an arrow": (
        set_at("other_names", to=[{"program": "p", "entries": [{"entry": "q", "parameters": "q.weight", "dims": "a b"}]}]),
        ["other_names", 0, "entries", 0, "dims"]),
    "an axis of a size that is no expression": (
        set_at("other_names", to=[{"program": "p", "entries": [{"entry": "q", "sizes": {"half": [2]}}]}]),
        ["other_names", 0, "entries", 0, "sizes", "half"]),
    "attention without a name": (set_at("attention", to={"module": "model.layers.*.attn", "query": "q", "key": "k",
                                                         "value": "v", "output": "o"}), ["attention"]),
}


class Families(unittest.TestCase):
    def setUp(self):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
        self.validator = jsonschema.Draft202012Validator(SCHEMA)

    def test_every_built_in_family_fits(self):
        paths = sorted((SPECS / "families").glob("*.json"))
        self.assertGreaterEqual(len(paths), 20)
        for path in paths:
            with self.subTest(path.name):
                self.validator.validate(read(path))

    def test_every_built_in_scheme_fits(self):
        validator = jsonschema.Draft202012Validator({"$ref": "#/$defs/scheme", "$defs": SCHEMA["$defs"]})
        paths = sorted((SPECS / "schemes").glob("*.json"))
        self.assertGreaterEqual(len(paths), 1)
        for path in paths:
            with self.subTest(path.name):
                validator.validate(read(path))

    def test_a_mistake_does_not_fit(self):
        self.validator.validate(VALID)
        for name, (document, place) in MISTAKES.items():
            with self.subTest(name):
                errors = list(self.validator.iter_errors(document))
                self.assertEqual([list(error.absolute_path) for error in errors], [place])


if __name__ == "__main__":
    unittest.main()
