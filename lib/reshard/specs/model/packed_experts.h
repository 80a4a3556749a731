#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/specs/family/family.h"

namespace reshard {

/// The names that a mixture of experts has in the memory of Transformers 5, and those of its files. In memory, one tensor
/// holds the first linears of all experts of a layer, gate_up_proj (E, 2 I, H), and one the second, down_proj (E, H, I). FSDP, DeepSpeed and save_pretrained(save_original_format=False) write
/// these. Source: transformers/conversion_mapping.py.
class PackedExperts {
 public:
  /// All experts of a layer, or of each layer where names have stars for numbers.
  struct Stack {
    std::string name;  // "model.layers.*.mlp.experts.gate_up_proj"
    /// What each expert has in it, from its first row on: "model.layers.*.mlp.experts.*.gate_proj.weight", up_proj.
    std::vector<std::string> parts;

    /// Part `part` of an expert, of a stack without stars for layers.
    std::string name_of(std::size_t part, std::uint64_t expert) const;
  };

  explicit PackedExperts(const Family& family);

  /// Whether experts of the family are packed at all.
  bool empty() const { return stacks_.empty(); }
  /// Whether Transformers 5 is known to have models of this family so. Others may be read, but are not written.
  bool is_known() const { return is_known_; }
  /// Whether save_pretrained of Transformers 5 leaves them packed. Elsewhere it writes the names of the model's files.
  bool stay_packed() const { return stay_packed_; }
  /// The stack of this name in a layer, or std::nullopt.
  std::optional<Stack> find(std::string_view name) const;
  /// Where a parameter of an expert is.
  struct Place {
    Stack stack;  // of its layer
    std::uint64_t expert = 0;
    std::size_t part = 0;
  };
  /// The place of a parameter in the stack of its layer, or std::nullopt.
  std::optional<Place> place_of(std::string_view parameter) const;

  /// What Transformers 5 calls a parameter that is in no stack.
  std::string packed_name(const std::string& own) const;
  /// The family's name for a parameter that is in no stack; `packed` itself if the family has no such parameter.
  std::string own_name(const std::string& packed) const;
  /// Whether a name is that of a module's in a layer's list of experts: of a linear's bias, or its scales.
  static bool is_of_expert(std::string_view parameter);

 private:
  std::vector<Stack> stacks_;
  std::set<std::string> names_;  // all parameters of the family, with stars for numbers
  bool is_known_ = false;
  bool stay_packed_ = false;
  std::vector<std::pair<std::string_view, std::string_view>> renames_;  // parts of names: the family's, Transformers'
};

}  // namespace reshard
