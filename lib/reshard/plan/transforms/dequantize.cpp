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
#include "reshard/specs/model/quantization.h"
#include "reshard/tensor/recipes/block_scaled.h"
#include "reshard/tensor/recipes/mxfp4.h"

namespace reshard {
namespace {

constexpr std::string_view kQuantized = ".quantized";  // after the name of a weight whose values have its name

/// The values of a quantised weight, computed from it and its scales, and the names of the linear's tensors that have no
/// meaning without quantisation.
struct Values {
  LogicalTensor tensor;
  std::vector<std::string> others;
};

/// Whether the target stores weights of this method as they are.
bool stores(const TargetRequest& target, std::string_view method) {
  if (target.layout == nullptr) return false;
  const auto& stored = target.layout->traits().stores;
  return std::any_of(stored.begin(), stored.end(), [&](const StoredQuantization& one) {
    return one.method == method && target.options.flag(one.flag->name);
  });
}

/// Returns the values of `codes`, if it is a tensor of codes next to their scales; std::nullopt otherwise.
std::optional<Values> values_of_codes(const SourceMap& source, const LogicalTensor& codes,
                                      const TargetRequest& target) {
  const auto coded = coded_weight(codes.name, codes.dtype);
  if (!coded || coded->codes != codes.name || stores(target, coded->method)) return std::nullopt;
  const auto shape = mxfp4_values_shape(codes.shape);  // of the only method
  if (!shape || !source.find_logical(coded->scales) || source.find_logical(coded->weight)) return std::nullopt;
  auto computed = std::make_shared<const Computed>(Computed{mxfp4_recipe(), {codes.name, coded->scales}});
  return Values{{coded->weight, DType::kBF16, *shape, std::move(computed)}, {}};
}

/// Returns the values of `weight`, if scales of its linear multiply it; std::nullopt otherwise.
std::optional<Values> scaled_values(const SourceMap& source, Quantization& quantization, const LogicalTensor& weight) {
  const auto holds = [&](const std::string& name) { return source.find_logical(name).has_value(); };
  auto scaled = quantization.scaled(weight.name, weight.shape, holds);
  if (!scaled) return std::nullopt;
  auto computed = std::make_shared<const Computed>(Computed{block_scaled_recipe(scaled->rows, scaled->columns),
                                                            {weight.name + std::string(kQuantized), scaled->scales}});
  return Values{{weight.name, DType::kF32, weight.shape, std::move(computed)}, std::move(scaled->others)};
}

/// Adds the values to the source. A weight whose name they have gets another one.
void add_values(SourceMap& source, const std::vector<Values>& all) {
  std::vector<std::string> names;
  for (const LogicalTensor& tensor : source.logical) names.push_back(tensor.name);
  for (const Values& values : all)
    if (const auto weight = source.find_logical(values.tensor.name))
      names[*weight] = values.tensor.computed->inputs.front();
  source.rename_logical(names);
  for (const Values& values : all) source.add_logical(values.tensor, {});
}

/// Rejects wanted codes whose scales have another new name, and codes and scales without a counterpart next to others
/// that are dequantised: the configuration of the model no longer describes them.
void validate_no_part(const Draft& draft, const TargetRequest& target, bool dequantizes) {
  const SourceMap& source = draft.source.map;
  for (const LogicalTensor& tensor : draft.wanted) {
    const std::uint32_t number = source.find_logical(tensor.name).value();
    const std::string& name = number < draft.old_names.size() ? draft.old_names[number] : tensor.name;
    const auto coded = coded_weight(name, tensor.dtype);
    if (!coded || stores(target, coded->method)) continue;
    const bool is_pair =
        name == coded->codes && mxfp4_values_shape(tensor.shape) &&
        std::find(draft.old_names.begin(), draft.old_names.end(), coded->scales) != draft.old_names.end();
    if (!dequantizes && !is_pair) continue;
    const std::size_t suffix = coded->weight.size();
    throw Error(ErrorKind::kUnsupported,
                fmt::format("cannot be dequantised: `dtype` needs a weight's {} and {} under the same name",
                            coded->codes.substr(suffix), coded->scales.substr(suffix)))
        .in(draft.source.path)
        .tensor(tensor.name)
        .hint("leave it out with `drop`, keep both names as they are, or leave out `dtype`");
  }
}

/// Rejects wanted scales next to weights that are dequantised: their own weights are not among these.
void validate_no_scales(const Draft& draft, const std::string& stacked_suffix) {
  for (const LogicalTensor& tensor : draft.wanted)
    if (is_quantized_tensor(tensor.name) || (!stacked_suffix.empty() && tensor.name.ends_with(stacked_suffix)))
      throw Error(ErrorKind::kUnsupported, "belongs to a quantised weight that `dtype` does not dequantise")
          .in(draft.source.path)
          .tensor(tensor.name)
          .hint("keep the weight and its scales together under their names, or leave out `dtype`");
}

/// Sets the model that has the tensors of `draft.wanted`, and drops those that only the quantised model has, such as
/// scales of the key/value cache.
void set_plain_model(Draft& draft) {
  if (!draft.model || !draft.source.language_model.family) return;
  LanguageModel plain = draft.source.language_model;
  Json config = *plain.config.json;
  erase_quantization(config);
  plain.config.json = std::make_shared<const Json>(std::move(config));
  std::unordered_set<std::string_view> names;
  for (const LogicalTensor& tensor : draft.wanted) names.insert(tensor.name);
  const Model quantized = *std::exchange(draft.model, instantiate(plain, names));
  std::unordered_set<std::string_view> left_out;
  for (const ModelParameter& parameter : quantized.parameters) left_out.insert(parameter.name);
  for (const ModelParameter& parameter : draft.model->parameters) left_out.erase(parameter.name);
  std::erase_if(draft.wanted, [&](const LogicalTensor& tensor) {
    const bool is_left_out = left_out.count(tensor.name) > 0;
    if (is_left_out) draft.dropped.push_back(tensor.name);
    return is_left_out;
  });
}

}  // namespace

void dequantize(Draft& draft, const Request& request) {
  if (!request.dtype) return;
  SourceMap& source = draft.source.map;
  const ModelConfig& config = draft.source.language_model.config;
  auto quantization = config.json ? Quantization::read(config) : std::nullopt;
  std::vector<LogicalTensor> wanted;
  std::vector<Values> all;
  for (LogicalTensor& tensor : draft.wanted) {
    auto values = values_of_codes(source, tensor, request.target);
    if (!values && quantization) values = scaled_values(source, *quantization, tensor);
    if (!values) {
      wanted.push_back(std::move(tensor));
      continue;
    }
    wanted.emplace_back(values->tensor).computed = nullptr;
    all.push_back(*std::move(values));
  }
  if (!all.empty()) add_values(source, all);
  std::unordered_set<std::string> replaced;
  for (const Values& values : all) {
    replaced.insert(values.tensor.computed->inputs.back());
    replaced.insert(values.others.begin(), values.others.end());
    draft.dropped.insert(draft.dropped.end(), values.others.begin(), values.others.end());
  }
  std::erase_if(wanted, [&](const LogicalTensor& tensor) { return replaced.count(tensor.name) > 0; });
  draft.wanted = std::move(wanted);
  validate_no_part(draft, request.target, !all.empty());
  if (all.empty()) return;
  if (quantization) validate_no_scales(draft, quantization->stacked_suffix());
  draft.transforms.push_back({Applied::Transform::kDequantize, all.size()});
  set_plain_model(draft);
}

}  // namespace reshard
