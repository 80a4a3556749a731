#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/packed_names.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// An entry of a checkpoint that contains several tensors of the model, or one in another order.
struct PackedEntry {
  std::shared_ptr<const PackedNames> names;
  std::string entry;  // what the files call it
  /// Shape of the parameters' entry. A state of another shape, such as a step count, belongs to each parameter as a whole.
  Dims shape;
};

/// The packed entries of a checkpoint.
struct PackedEntries {
  std::filesystem::path where;                 // the file or directory that lists the entries, for errors
  std::map<std::string, PackedEntry> by_name;  // keyed by the name of the logical tensor, as in StateNames::names

  /// The names of the tensors in all entries.
  /// \throws Error kBadInput, naming `where`, for a shape that its scheme does not have; kUnsupported for more tensors
  ///         than any model has.
  std::vector<std::string> tensors() const;
};

struct Unpacked {
  std::string kept;  // an entry that is still packed, because its order depends on an unknown model; empty if none is
  std::vector<std::string> notes;  // entries that have padding, which is left out
};

/// Replaces logical tensors that are packed by the tensors that they contain. The pieces of these have stored tensors of
/// their own, each a view of a part of the entry. Without a model, entries stay packed if their scheme needs its numbers.
/// If this throws, `map` is unchanged.
/// \param states  for each logical tensor, the parameter that it belongs to, which is unpacked with it; null for parameters.
/// \throws Error as PackedEntries::tensors; kBadInput if an entry does not have the shape that the model has, or a tensor
///         exists twice; kUnsupported for more pieces than any model has, or pieces that split a byte.
Unpacked unpack(SourceMap& map, const PackedEntries& packed, const Model* model,
                std::vector<TrainingState>* states = nullptr);

/// Takes packed entries of parameters, or of their `states`, apart by the model of `checkpoint` if it is known. If `use` is
/// kLenient, a model that does not fit is a note, and entries that need it stay packed.
/// \returns whether none stays packed.
/// \throws Error as unpack; kUnsupported for an entry that cannot be taken apart without a model.
bool unpack_entries(SourceMap& map, const PackedEntries& packed, Checkpoint& checkpoint, ConfigUse use,
                    std::vector<TrainingState>* states = nullptr);

}  // namespace reshard
