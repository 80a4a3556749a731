// JSON files of checkpoints. The first character of an input says which file the rest is.

#include "fuzz/target.h"
#include "reshard/base/json.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/peft/adapter_config.h"

void reshard::test::fuzz(std::string_view input) {
  if (input.empty()) return;
  std::string text(input.substr(1));
  MemoryFiles files;
  switch (input.front()) {
    case 'c': {  // config.json, which is written again
      const OrderedJson json = parse_ordered_json(text, "f", JsonDialect::kPython);
      check(Json(json) == parse_json(text, "f", JsonDialect::kPython) || text.find("NaN") != text.npos);
      check(parse_ordered_json(json_text(json), "f", JsonDialect::kPython).size() == json.size());
      return;
    }
    case 'a': parse_adapter_config(std::move(text), "f"); return;
    case 'd': parse_family_text(std::move(text), "f"); return;
    case 'm': parse_manifest(text, "f"); return;
    case 'i':
      files.write("f", std::move(text));
      read_hf_index(files, "f");
      return;
    case 'k':
      files.write("f", std::move(text));
      read_split_index(files, "f");
      return;
    default: return;
  }
}
