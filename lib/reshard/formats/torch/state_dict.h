#pragma once

#include <compare>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/torch_tensor.h"

namespace reshard {

/// Keys next to a state dict that describe how it is split (optimum-neuron 0.0.15 to 0.0.21). A container whose file has
/// them lists each in Container::metadata, with an empty value; specs/stages/stage_pt.h reads them.
inline constexpr std::string_view kShardedMetadataKey = "sharded_metadata";
inline constexpr std::string_view kGqaQkvMetadataKey = "gqa_qkv_metadata";

/// The named values of a state dict, in its order. Invariant: names are unique, UTF-8, and free of control characters.
struct StateDict {
  std::vector<std::pair<std::string, PickleRef>> values;
  FileMetadata descriptions;          // those of the keys above that the file has, with empty values
  std::vector<std::string> warnings;  // whole sentences, without the path
};

/// Finds the state dict in `file`: its mapping of names to what `is_value` takes for a tensor, or such a mapping under
/// "model", "state_dict", "module", "model_state_dict" or "weights" in it, or else under "ema" and the like, which are
/// averages of the weights. Nested mappings are not joined into one: nothing says how the parts of a name belong together.
/// \throws Error kUnsupported where there is no one state dict, or two have the same names; kBadInput for keys that are
/// no names, or come twice.
StateDict find_state_dict(const TorchFile& file, const std::function<bool(PickleRef)>& is_value);

/// Whether programs put an average of the weights over the steps of training (EMA) under this key: "model_ema".
bool is_average_key(std::string_view key);

/// Whether `node` is what xser puts into a state dict in the place of a tensor.
bool is_xser_reference(const Pickle& pickle, PickleRef node);

/// Adds up the bytes of storages that no tensor uses: a slice is saved with all of the tensor that it was cut from.
class StorageUse {
 public:
  /// A tensor that is taken from the file that is being read.
  void add(const TorchTensor& tensor);
  /// All that is taken from `file` has been added.
  void finish(const TorchFile& file);
  /// A warning, where files are more than twice as large for it.
  void warn(std::vector<std::string>& warnings) const;

 private:
  struct Range {
    std::uint32_t storage;
    std::uint64_t begin, end;
    auto operator<=>(const Range&) const = default;
  };

  std::vector<Range> ranges_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t unused_bytes_ = 0;
};

}  // namespace reshard
