#include "reshard/layouts/dcp/original_dtypes.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reshard/base/json.h"
#include "reshard/base/strings.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/core/read_model.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;  // for a million tensors

bool is_plain_float(DType dtype) {
  return describe(dtype).kind == DTypeClass::kFloat && bits(dtype) >= 16;
}

}  // namespace

fs::path take_original_dtypes(Files& files, Checkpoint& checkpoint) {
  if (!checkpoint.beside_model) return {};
  fs::path path;
  for (const fs::path& directory : model_directories(files, checkpoint.directory))
    if (path.empty() && files.is_file(directory / kOriginalDtypesFile)) path = directory / kOriginalDtypesFile;
  if (path.empty()) return {};
  const Json json = read_json_file(files, path, kMostBytes);
  const JsonObject dtypes(json, path);
  std::map<std::string, std::vector<std::string>> stay;  // tensors by their dtype in the file
  std::set<DType> found;
  bool changes = false;
  for (LogicalTensor& tensor : checkpoint.map.logical) {
    if (!is_plain_float(tensor.dtype)) continue;
    const std::string word = dtypes.has(tensor.name) ? dtypes.string_at(tensor.name) : "nothing";
    const std::optional<DType> original = dtype_from_name(word);
    if (!original || !is_plain_float(*original)) {
      stay[word].push_back(tensor.name);
      continue;
    }
    tensor.model_dtype = original;
    found.insert(*original);
    changes = changes || *original != tensor.dtype;
  }
  // A model that was float32 as a whole does not need float32 in any tensor.
  if (found == std::set{DType::kF32})
    for (LogicalTensor& tensor : checkpoint.map.logical)
      if (tensor.dtype == DType::kF32) tensor.model_dtype.reset();
  for (const auto& [word, names] : stay)
    checkpoint.notes
        .mismatch(fmt::format("{} has {} for {} tensor{}, which {} as saved: {}", kOriginalDtypesFile, printable(word),
                              names.size(), names.size() == 1 ? "" : "s", names.size() == 1 ? "stays" : "stay",
                              list_names(names)))
        .of(names)
        .in(path);
  return changes ? path : fs::path();
}

}  // namespace reshard
