#include "reshard/plan/transforms/dequantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/plan/transforms/config_dtype.h"
#include "reshard/specs/model/language_model.h"
#include "reshard/tensor/recipes/mxfp4.h"

namespace reshard {
namespace {

// Names of Transformers (integrations/mxfp4.py).
constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";

/// Returns the values of `blocks`, if it is a tensor of MXFP4 blocks next to their scales; std::nullopt otherwise.
std::optional<LogicalTensor> values_of(const SourceMap& source, const LogicalTensor& blocks) {
  if (!blocks.name.ends_with(kBlocks) || blocks.dtype != DType::kU8) return std::nullopt;
  const std::string name = blocks.name.substr(0, blocks.name.size() - kBlocks.size());
  const std::string scales = name + std::string(kScales);
  const auto shape = mxfp4_values_shape(blocks.shape);
  if (!shape || !source.find_logical(scales) || source.find_logical(name)) return std::nullopt;
  auto computed = std::make_shared<const Computed>(Computed{mxfp4_recipe(), {blocks.name, scales}});
  return LogicalTensor{name, DType::kBF16, *shape, std::move(computed)};
}

/// Rejects wanted blocks whose scales have another new name, and blocks and scales without a counterpart next to others
/// that are dequantised: the configuration of the model no longer describes them.
void validate_no_part(const Draft& draft, bool dequantizes) {
  const SourceMap& source = draft.source.map;
  for (const LogicalTensor& tensor : draft.wanted) {
    const std::uint32_t number = source.find_logical(tensor.name).value();
    const std::string& name = number < draft.old_names.size() ? draft.old_names[number] : tensor.name;
    const bool is_block = name.ends_with(kBlocks);
    if (tensor.dtype != DType::kU8 || !(is_block || name.ends_with(kScales))) continue;
    const std::string scales = name.substr(0, name.rfind('_')) + std::string(kScales);
    const bool is_pair = is_block && mxfp4_values_shape(tensor.shape) &&
                         std::find(draft.old_names.begin(), draft.old_names.end(), scales) != draft.old_names.end();
    if (!dequantizes && !is_pair) continue;
    throw Error(
        ErrorKind::kUnsupported,
        fmt::format("cannot be dequantised: `dtype` needs a weight's {} and {} under the same name", kBlocks, kScales))
        .in(draft.source.path)
        .tensor(tensor.name)
        .hint("leave it out with `drop`, keep both names as they are, or leave out `dtype`");
  }
}

/// Sets the model that has the tensors of `draft.wanted`.
void set_plain_model(Draft& draft) {
  if (!draft.model || !draft.source.language_model.family) return;
  LanguageModel plain = draft.source.language_model;
  Json config = *plain.config.json;
  erase_quantization(config);
  plain.config.json = std::make_shared<const Json>(std::move(config));
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : draft.wanted) names.insert(tensor.name);
  draft.model = instantiate(plain, names);
}

}  // namespace

void dequantize(Draft& draft, const Request& request) {
  if (!request.dtype) return;
  SourceMap& source = draft.source.map;
  std::vector<LogicalTensor> wanted;
  std::unordered_set<std::string> scales;
  for (LogicalTensor& tensor : draft.wanted) {
    auto values = values_of(source, tensor);
    if (!values) {
      wanted.push_back(std::move(tensor));
      continue;
    }
    scales.insert(values->computed->inputs.back());
    source.add_logical(*values, {});
    wanted.emplace_back(*std::move(values)).computed = nullptr;
  }
  std::erase_if(wanted, [&](const LogicalTensor& tensor) { return scales.count(tensor.name) > 0; });
  draft.wanted = std::move(wanted);
  validate_no_part(draft, !scales.empty());
  if (scales.empty()) return;
  draft.transforms.push_back({Applied::Transform::kDequantize, scales.size()});
  set_plain_model(draft);
}

}  // namespace reshard
