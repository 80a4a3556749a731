#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/layouts/names/packed_names.h"
#include "reshard/specs/model/model.h"

namespace reshard {

/// An entry that contains several tensors of the model, or one tensor with reordered elements.
struct PackedEntry {
  std::shared_ptr<const PackedNames> names;
  std::string entry;  // name in the files
  /// Shape of the parameters' entry. A state of another shape, such as a step count, applies to each parameter.
  Dims shape;
};

/// The packed entries of a checkpoint.
struct PackedEntries {
  std::filesystem::path where;                 // the file or directory that lists the entries, for errors
  std::map<std::string, PackedEntry> by_name;  // keyed by the name of the logical tensor, as in NamedEntry::name

  /// Returns the names of the tensors in all entries.
  /// \throws Error kBadInput, naming `where`, for a shape that does not match the scheme; kUnsupported for more tensors
  ///         than any model has.
  std::vector<std::string> tensors() const;
};

struct Unpacked {
  std::string kept;  // an entry that stays packed because its order depends on an unknown model; empty if none
  Notes notes;       // one per entry whose padding is left out
};

/// Replaces packed logical tensors by the tensors that they contain. Each piece of these becomes a stored tensor that
/// is a view of part of the entry. Without a model, entries stay packed if their scheme depends on the model's numbers.
/// If this function throws, `map` is unchanged.
/// \param states  The state of each logical tensor, unpacked together with it; null if the tensors are parameters.
/// \throws Error as PackedEntries::tensors; kBadInput if an entry's shape does not match the model, or if a tensor
///         exists twice; kUnsupported for more pieces than any model has, or for pieces that split a byte.
Unpacked unpack(SourceMap& map, const PackedEntries& packed, const Model* model,
                std::vector<TrainingState>* states = nullptr);

/// Unpacks entries of parameters, or of their `states`, with the model of `checkpoint` if it is known. If `use` is
/// kLenient, adds a note instead of failing if the model does not match; entries that depend on the model stay packed.
/// \returns whether no entry stays packed.
/// \throws Error as unpack; kUnsupported for an entry that cannot be unpacked without a model.
bool unpack_entries(SourceMap& map, const PackedEntries& packed, Checkpoint& checkpoint, ConfigUse use,
                    std::vector<TrainingState>* states = nullptr);

}  // namespace reshard
