#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "reshard/layouts/names/packed_names.h"
#include "reshard/specs/family/family.h"

namespace reshard {

/// The names that a mixture of experts has in the memory of Transformers 5, by its built-in scheme, and those of its files.
/// In memory, one tensor contains the first linears of all experts of a layer, gate_up_proj (E, 2 I, H), and one the second,
/// down_proj (E, H, I). FSDP, DeepSpeed and save_pretrained(save_original_format=False) write these. Source:
/// transformers/conversion_mapping.py.
class PackedExperts {
 public:
  explicit PackedExperts(const Family& family);

  /// Whether experts of the family are packed at all.
  bool empty() const { return scheme_ == nullptr; }
  /// Whether Transformers 5 is known to have models of this family so. Others may be read, but are not written.
  bool is_known() const { return is_known_; }
  /// Whether save_pretrained of Transformers 5 leaves them packed. Elsewhere it writes the names of the model's files.
  bool stay_packed() const { return stay_packed_; }
  /// The names of the family's parameters in memory; null if its experts are never packed.
  const std::shared_ptr<const Scheme>& scheme() const { return scheme_; }
  /// What the tensor of this name contains; std::nullopt if it is not that of the experts of a layer.
  std::optional<PackedNames> find(std::string_view name) const;
  /// The family's name for a parameter that is in no stack; `packed` itself if the family has no such parameter.
  std::string own_name(const std::string& packed) const;
  /// Whether a name is that of a module's in a layer's list of experts: of a linear's bias, or its scales.
  static bool is_of_expert(std::string_view parameter);

 private:
  std::shared_ptr<const Scheme> scheme_;
  std::set<std::string, std::less<>> names_;  // of the family's parameters in files
  bool is_known_ = false;
  bool stay_packed_ = false;
};

}  // namespace reshard
