// JSON files of checkpoints. The first character of an input says which file the rest is.

#include <cstdlib>
#include <string>

#include "fuzz/time_limit.h"
#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/formats/safetensors/hf_index.h"
#include "reshard/io/memory_files.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/specs/family/family_parser.h"
#include "reshard/specs/peft/adapter_config.h"

namespace reshard {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void read(char kind, std::string text) {
  MemoryFiles files;
  switch (kind) {
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
    default: return;
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  if (size == 0) return 0;
  try {
    reshard::read(static_cast<char>(bytes[0]), {reinterpret_cast<const char*>(bytes) + 1, size - 1});
  } catch (const reshard::Error& error) {
    reshard::check(error.kind() == reshard::ErrorKind::kBadInput || error.kind() == reshard::ErrorKind::kUnsupported);
  }
  return 0;
}
