#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "support/files.h"

namespace reshard::test {

/// config.json of a model that no family describes, with plans; of three layers.
extern const char* const kPlannedConfig;

/// A tensor of the model, and how a rank has it: the dim that is split, if any is, in how many matrices.
struct Planned {
  std::string name;
  Dims shape;
  std::optional<std::size_t> dim{};
  std::uint64_t packed = 1;
};

/// The tensors of that model. `prefix` is the base model's: "model.".
std::vector<Planned> tensors_of(const std::string& prefix, bool head);

/// The checkpoint of `all` in `directory`.
TensorMap write_planned(const std::filesystem::path& directory, const std::vector<Planned>& all,
                        const nlohmann::json& config);

}  // namespace reshard::test
