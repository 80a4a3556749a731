#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/io/files.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// `mp_metadata_pp_rank_Y.json`, the file beside the shards that says how each parameter of pipeline rank Y is laid out
/// (optimum-neuron, ModelWeightTransformationSpecs.to_metadata).
std::string metadata_file_name(std::uint32_t pp_rank);
/// The Y of such a name, or of an older `mp_metadata_pp_rank_Y.pt` (stage_pt.h); nothing for others.
std::optional<std::uint32_t> metadata_pp_rank(std::string_view file_name);

/// `name`, which may become a tensor's: not empty, without control characters.
/// \throws Error kBadInput.
const std::string& validate_name(const std::string& name, const std::filesystem::path& path);

/// Reads one; parameters come sorted by name.
/// \throws Error kBadInput for anything that is not such a file, and for specs whose numbers contradict each other;
/// kUnsupported for an unknown kind of spec or of adapters.
StageMetadata read_metadata(Files& files, const std::filesystem::path& path);

/// The text of such a file, parameters in the order given. Equal as JSON to what the reference writes.
std::string metadata_text(const StageMetadata& metadata);

}  // namespace reshard
