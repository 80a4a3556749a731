#include "reshard/plan/target/dtypes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/plan/target/cast_dtypes.h"
#include "reshard/plan/target/config_dtype.h"
#include "reshard/specs/config/model_config.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The dtype that config.json names; std::nullopt if it names none, or "auto". Of both keys Transformers takes `dtype`.
/// \throws Error kBadInput, naming the key, if the value is no floating-point dtype.
std::optional<DType> config_dtype(const ModelConfig& config) {
  const JsonObject object(*config.json, config.path);
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!object.has(key) || object.at(key).is_null() || object.at(key) == "auto") continue;
    const Json& value = object.at(key);
    for (const DTypeRow& row : kDTypes)
      if (row.kind == DTypeClass::kFloat && *row.torch_name != '\0' && value == row.torch_name) return row.dtype;
    object.fail(key, "the name of a floating-point dtype, such as \"bfloat16\"");
  }
  return std::nullopt;
}

}  // namespace

void take_model_dtypes(Job& job, std::vector<LogicalTensor>& logical) {
  std::map<std::pair<DType, bool>, std::size_t> counts;  // by dtype, and whether float64 alone is why
  for (LogicalTensor& tensor : logical) {
    const auto wanted = job.source.model_dtype(tensor);
    if (!wanted) continue;
    const bool is_wide = tensor.dtype == DType::kF64 && wanted == DType::kF32;
    tensor.dtype = *wanted;
    ++counts[{tensor.dtype, is_wide}];
  }
  for (const auto& [how, count] : counts)
    job.notes.push_back(fmt::format("{} tensor{} {} cast {}", count, count == 1 ? "" : "s", count == 1 ? "is" : "are",
                                    how.second
                                        ? std::string("from F64 to F32")
                                        : fmt::format("to {}, which the model was trained in", name(how.first))));
}

void take_config_dtype(Files& files, Job& job, const Layout& layout, const fs::path& config_file,
                       std::vector<LogicalTensor>& logical) {
  if (!layout.traits().casts_to_config_dtype || config_file.empty()) return;
  const std::optional<DType> wanted = config_dtype(read_model_config_file(files, config_file));
  if (!wanted) return;
  const auto is_plain = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  };
  std::size_t count = 0;
  for (LogicalTensor& tensor : logical) {
    if (!is_plain(*wanted) || !is_plain(tensor.dtype) || tensor.dtype == *wanted) continue;
    tensor.dtype = *wanted;
    ++count;
  }
  if (count != 0)
    job.notes.push_back(fmt::format("{} of the tensors {} cast to {}, which config.json says", count,
                                    count == 1 ? "is" : "are", name(*wanted)));
}

void note_config_dtype(Files& files, Job& job, const Checkpoint& source, const std::vector<LogicalTensor>& logical) {
  if (source.config.empty()) return;
  std::optional<ModelConfig> config;
  try {
    config = read_model_config_file(files, source.config);
  } catch (const Error& error) {  // next to a lone file, config.json need not be a model's
    if (error.kind() == ErrorKind::kIo) throw;
    return;
  }
  std::optional<DType> wanted;
  try {
    wanted = config_dtype(*config);
  } catch (const Error& error) {
    job.notes.push_back(fmt::format("{}; `dtype` corrects it", error.what()));
    return;
  }
  const auto count = std::count_if(logical.begin(), logical.end(), [&](const LogicalTensor& tensor) {
    return tensor.dtype == DType::kF32 && tensor.dtype != wanted;
  });
  if (!wanted || count == 0) return;
  const auto others = std::count_if(logical.begin(), logical.end(), [](const LogicalTensor& tensor) {
    return tensor.dtype != DType::kF32 && describe(tensor.dtype).kind == DTypeClass::kFloat;
  });
  // A model may have a few parameters in float32.
  if (source.beside_model ? count < others : others > 0) return;
  job.notes.push_back(fmt::format("{} tensor{} float32{}, though config.json says {}: `dtype` {} casts {}", count,
                                  count == 1 ? " is" : "s are", source.beside_model ? ", as in training" : "",
                                  describe(*wanted).torch_name, describe(*wanted).torch_name,
                                  count == 1 ? "it" : "them"));
}

void take_dtypes(Files& files, Job& job, const Checkpoint& source, const Layout& target, std::optional<DType> dtype,
                 std::vector<LogicalTensor>& logical) {
  job.dtype = dtype;
  if (dtype) {
    cast_tensors(job, logical, {*dtype}, read_ordered_config(files, source.config));
    return;
  }
  take_model_dtypes(job, logical);
  take_config_dtype(files, job, target, source.config, logical);
  if (!target.traits().casts_to_config_dtype) note_config_dtype(files, job, source, logical);
}

}  // namespace reshard
