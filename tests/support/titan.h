#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "support/files.h"

/// torchtitan's state dicts, by the tests' own rules.
namespace reshard::test {

/// The tensors of a model as torchtitan stores them, of v0.2.2 or as main has them since.
/// \param rotary_head_dim  rows of a head, where those of query and key come in pairs; 0 where they stay.
/// \param fuses_qkv  main has the projections of attention in a module of their own.
std::map<std::string, TensorData> titan_tensors(const TensorMap& model, bool is_main, std::uint64_t rotary_head_dim,
                                                bool fuses_qkv);

}  // namespace reshard::test
