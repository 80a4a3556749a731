#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "reshard/layouts/names/packed_names.h"
#include "reshard/specs/family/family.h"

namespace reshard {

/// The names that a mixture of experts has in the memory of Transformers 5, by its built-in scheme, and the names in
/// its files. In memory, one tensor per layer contains the first linears of all experts, gate_up_proj (E, 2 I, H), and
/// another the second linears, down_proj (E, H, I). FSDP, DeepSpeed and save_pretrained(save_original_format=False)
/// write these tensors. Source: transformers/conversion_mapping.py.
class PackedExperts {
 public:
  explicit PackedExperts(const Family& family);

  /// Whether experts of the family are ever packed.
  bool empty() const { return scheme_ == nullptr; }
  /// Whether Transformers 5 is known to pack the experts of this family. Other families may be read packed, but are not
  /// written so.
  bool is_known() const { return is_known_; }
  /// Whether save_pretrained of Transformers 5 writes the experts packed. For other families, it writes the names of
  /// the model's files.
  bool stay_packed() const { return stay_packed_; }
  /// The scheme of the family's names in memory; null if its experts are never packed.
  const std::shared_ptr<const Scheme>& scheme() const { return scheme_; }
  /// Returns the contents of the tensor of this name; std::nullopt if it does not contain the experts of a layer.
  std::optional<PackedNames> find(std::string_view name) const;
  /// Returns the family's name of a parameter that is not packed; `packed` itself if the family has no such parameter.
  std::string own_name(const std::string& packed) const;
  /// Whether a name is that of a parameter in a layer's list of experts, such as a linear's bias or its scales.
  static bool is_of_expert(std::string_view parameter);

 private:
  std::shared_ptr<const Scheme> scheme_;
  std::set<std::string, std::less<>> names_;  // names of the family's parameters in files
  bool is_known_ = false;
  bool stay_packed_ = false;
};

}  // namespace reshard
