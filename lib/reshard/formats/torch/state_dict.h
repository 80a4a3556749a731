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

/// Keys next to a state dict that describe its sharding (optimum-neuron 0.0.15 to 0.0.21). The container of such a file
/// lists each of them in Container::metadata, with an empty value; specs/stages/stage_pt.h reads them.
inline constexpr std::string_view kShardedMetadataKey = "sharded_metadata";
inline constexpr std::string_view kGqaQkvMetadataKey = "gqa_qkv_metadata";
/// Key in a state dict of the settings of a LoRA adapter (NxD's modules/lora), listed like these keys;
/// specs/peft/lora_config.h reads it.
inline constexpr std::string_view kLoraConfigKey = "lora_config";

/// The named values of a state dict, in its order. Invariant: names are unique, UTF-8, and free of control characters.
struct StateDict {
  std::vector<std::pair<std::string, PickleRef>> values;
  FileMetadata descriptions;          // keys above that the file contains, with empty values
  std::vector<std::string> warnings;  // complete sentences, without the path
  std::string left_out;               // some of the other keys in the file, for messages; empty if it has none
};

/// Finds the state dict in `file`: its mapping of names to values that `is_value` accepts as tensors, or such a mapping
/// under "model", "state_dict", "module", "model_state_dict" or "weights", or else under "ema" and similar keys, which
/// are averages of the weights. Does not join nested mappings: how to join the parts of a name is unknown.
/// \throws Error kUnsupported if there is no unique state dict, or two have the same names; kBadInput for keys that are
///         not names or occur twice.
StateDict find_state_dict(const TorchFile& file, const std::function<bool(PickleRef)>& is_value);

/// Returns some of the keys that a file contains next to its state dict, such as "optimizer, epoch"; empty if none.
/// \throws as find_state_dict.
std::string keys_beside_state_dict(const TorchFile& file);

/// Whether programs store an average of the weights over the steps of training (EMA) under this key: "model_ema".
bool is_average_key(std::string_view key);

/// Whether `node` is a reference that xser stores in a state dict instead of a tensor.
bool is_xser_reference(const Pickle& pickle, PickleRef node);

/// Counts the bytes of storages that no tensor uses: a slice is saved together with the tensor that it was cut from.
class StorageUse {
 public:
  /// Adds a tensor of the file that is being read.
  void add(const TorchTensor& tensor);
  /// Call after all tensors of `file` were added.
  void finish(const TorchFile& file);
  /// Adds a warning if unused bytes more than double the size of the files.
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
