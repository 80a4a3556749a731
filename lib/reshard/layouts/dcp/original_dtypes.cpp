#include "reshard/layouts/dcp/original_dtypes.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
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
  bool changes = false;
  std::vector<std::string> quantized;
  for (LogicalTensor& tensor : checkpoint.map.logical) {
    if (!dtypes.has(tensor.name) || !is_plain_float(tensor.dtype)) continue;
    const std::optional<DType> original = dtype_from_name(dtypes.string_at(tensor.name));
    if (!original || !is_plain_float(*original)) {
      quantized.push_back(tensor.name);
      continue;
    }
    tensor.model_dtype = original;
    changes = changes || *original != tensor.dtype;
  }
  if (!quantized.empty())
    checkpoint.notes.push_back(fmt::format("{} tensor{} quantised before training, and {} as saved: {}",
                                           quantized.size(), quantized.size() == 1 ? " was" : "s were",
                                           quantized.size() == 1 ? "stays" : "stay", list_names(quantized)));
  return changes ? path : fs::path();
}

}  // namespace reshard
