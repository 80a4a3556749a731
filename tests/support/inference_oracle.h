#pragma once

#include "support/models.h"

namespace reshard::test {

/// The tensors of one rank for NxD Inference, worked out element by element. Heads are taken from the library's
/// HeadSlots, which have tests of their own.
TensorMap expected_nxdi(const TinyModel& model, const TensorMap& originals, std::uint64_t tp, std::uint64_t rank,
                        bool fused, bool vocab_parallel);

/// The tensors of one rank of layout presharded, padded where the ranks do not divide a size.
TensorMap expected_presharded(const TensorMap& originals, std::uint64_t tp, std::uint64_t rank);

}  // namespace reshard::test
