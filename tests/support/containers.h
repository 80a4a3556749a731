#pragma once

#include <cstddef>
#include <filesystem>

#include "reshard/formats/common/container.h"
#include "support/files.h"

namespace reshard::test {

/// All tensors, each in C order whatever its strides.
TensorMap tensors_of(const Container& container);

/// Holds the CRC of every entry of every zip archive under `directory` against its bytes. \returns their number.
std::size_t check_crcs(const std::filesystem::path& directory);

/// The file of `plan`, whose tensors have these contents. CHECKs that these and the parts fill it from the first byte to
/// the last.
std::string assemble(const ContainerPlan& plan, const std::vector<std::string>& contents);

}  // namespace reshard::test
