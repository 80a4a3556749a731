// The names, rules and forms of NxD Inference's rank files: what they contain with the settings of a compiled model.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/partition.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/specs/family/scheme.h"
#include "reshard/specs/model/model.h"
#include "reshard/tensor/values/dtype.h"

namespace reshard {

/// Returns the prefix of the names of a model that is the language model of a larger one; otherwise empty.
std::string nxdi_prefix(const Model& model);

/// Validates that NxD Inference's names for the model are known.
void validate_named(const Model& model);

/// Returns the scheme of the entries that files with this form have.
Scheme nxdi_scheme(const Model& model, const OptionValues& form);

/// Returns the parameters that files with this form lack, with stars for numbers.
std::set<std::string> unstored_parameters(const Model& model, const OptionValues& form);

/// Returns `form` with a setting turned on.
OptionValues with_setting(OptionValues form, const LayoutOption& option, std::uint64_t degree);

/// Returns the degree to try a setting with: its own, or 2.
std::uint64_t tried_degree(const OptionValues& form, const LayoutOption& option);

/// Returns the names of entries that checkpoints have only with this setting.
std::set<std::string> names_with(const Model& model, const OptionValues& form, const LayoutOption& option);

/// Whether files differ with a setting.
bool has_effect(const Model& model, const OptionValues& form, const LayoutOption& option);

/// Returns the number of layers that NxD Inference has: none for multi-token prediction, which follow the others.
std::uint64_t served_layers(const Model& model);

/// Returns the names of the tensors in files with this form.
WrittenNames nxdi_names(const Model& model, const OptionValues& form);

/// Returns the rules of a model's tensors, without transposed ones. `dtype` is that of floating tensors.
std::vector<PartitionRule> nxdi_rules(const Model& model, std::uint32_t tp, const OptionValues& form,
                                      const HoldsName& holds, DType dtype);

/// Returns the sums and quotients that the files contain in place of parameters, with stars: "layers.*.bias + 1".
std::set<std::string> rounded_in(const std::vector<PartitionRule>& rules);

/// Returns the dtype of the first floating tensor that is not quantised.
template <typename Tensors>
DType float_dtype(const Tensors& tensors) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return describe(tensor.dtype).kind == DTypeClass::kFloat && bits(tensor.dtype) >= 16;
  });
  return found == tensors.end() ? DType::kBF16 : found->dtype;
}

}  // namespace reshard
