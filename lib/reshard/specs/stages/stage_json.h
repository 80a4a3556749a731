#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "reshard/io/files.h"
#include "reshard/specs/parallel/transformation_specs.h"

namespace reshard {

/// `mp_metadata_pp_rank_Y.json`, a sibling file of the shards that describes the layout of each parameter of pipeline
/// rank Y (optimum-neuron, ModelWeightTransformationSpecs.to_metadata).
std::string metadata_file_name(std::uint32_t pp_rank);
/// Returns Y from such a name, or from an older `mp_metadata_pp_rank_Y.pt` (stage_pt.h); std::nullopt for other names.
std::optional<std::uint32_t> metadata_pp_rank(std::string_view file_name);

/// Validates and returns `name`, which may become the name of a tensor: not empty, no control characters.
/// \throws Error kBadInput.
const std::string& validate_name(const std::string& name, const std::filesystem::path& path);

/// 200 000 parameters; parsed, such a file takes 20 times the memory.
inline constexpr std::uint64_t kMaxMetadataBytes = std::uint64_t{64} << 20;

/// Reads a metadata file; parameters are sorted by name.
/// \throws Error kBadInput if it is not a valid metadata file or a spec is inconsistent; kUnsupported for an unknown
///         kind of spec or adapter.
StageMetadata read_metadata(Files& files, const std::filesystem::path& path);

/// Returns the text of a metadata file, with parameters in the given order. Equal as JSON to the reference's output.
std::string metadata_text(const StageMetadata& metadata);

}  // namespace reshard
