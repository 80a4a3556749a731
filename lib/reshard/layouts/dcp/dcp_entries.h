#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/layouts/dcp/dcp_groups.h"
#include "reshard/layouts/dcp/dcp_target.h"
#include "reshard/layouts/map/region.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/states/training_states.h"

namespace reshard {

/// An entry of a torch.distributed.checkpoint: one logical tensor, or several that another program packs.
struct DcpEntry {
  std::string name;
  DType dtype;
  Dims shape;
  Dims unpadded;                                // shape without padding
  std::vector<std::uint32_t> logical;           // indices into TensorMap::logical; several if packed
  std::uint32_t first = 0;                      // the tensor that created the entry
  Packing packing;                              // of `logical`
  std::optional<std::size_t> tp_dim;            // the dim that tensor-parallel ranks split
  bool is_object = false;                       // TensorRole::kObject
  const WrittenNames::Entry* packed = nullptr;  // the packed entry; null if the entry is one tensor as it is
  DcpPath path{};
};

/// The contents of a checkpoint that is written, before entries are cut over ranks.
struct DcpEntryList {
  /// A second name for the contents of an entry.
  struct SecondName {
    std::string name;
    DcpPath path;
    std::uint32_t entry;  // index into `entries`
  };

  TargetMap map;                              // logical tensors, without files
  std::vector<DcpEntry> entries;              // each complete; the model's come first
  std::vector<DcpGroupObject> objects;        // the optimizer's groups
  std::vector<SecondName> second_names;       // of tied parameters
  std::set<std::string> rounded;              // names of rounded sums among the tensors, with stars for numbers
  bool keeps_prefix = false;                  // readers will keep the prefix because the family is unknown
  std::shared_ptr<const WrittenNames> names;  // owns DcpEntry::packed; null for the model's own names
};

/// Returns the entries of `logical` and the training states, under the names of `cut`. A reader with the model's
/// config.json maps them back to their tensors. Parameters and errors are those of dcp_target_map.
DcpEntryList list_dcp_entries(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model,
                              const DcpCut& cut);

}  // namespace reshard
