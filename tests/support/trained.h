#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "support/files.h"
#include "support/random.h"

/// One state dict as several trainers save it.
namespace reshard::test {

inline constexpr const char* kTrainedKinds[] = {"dcp", "fsdp-ranks", "zero-2", "zero-3", "universal"};

/// Writes `tensors` as FSDP or DeepSpeed has them on two ranks. FSDP cuts each tensor along `dim`, if it has that dim.
/// DeepSpeed has master weights of BF16 tensors, with the same values.
/// \param kind  one of kTrainedKinds.
void write_trained(const std::string& kind, const std::filesystem::path& directory, const TensorMap& tensors,
                   std::uint64_t dim, Random& random);

}  // namespace reshard::test
