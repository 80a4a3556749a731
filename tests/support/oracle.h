#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/models.h"

namespace reshard::test {

struct OracleOptions {
  std::uint64_t tp = 1;
  std::uint64_t pp = 1;
  std::uint64_t vpp = 1;
  std::vector<std::uint64_t> cuts;  // the last layer of every stage but the last; empty: dealt evenly
  bool fuse_qkv = false;
  bool fuse_mlp = true;                  // gate_proj and up_proj
  std::uint64_t kv_size_multiplier = 0;  // 0: the smallest that works
  std::string qkv_linear;                // of layout nxd: "on", "off", or empty for its default
};

/// What every rank must hold, worked out from the formulae of the reference systems with numeric views: folder name →
/// tensors. Shares no code with the library. The options must be legal for the model.
std::map<std::string, TensorMap> expected_ranks(const TinyModel& model, const TensorMap& originals,
                                                const OracleOptions& options);

/// Whether the reference could split the model so at all (sizes that divide, a multiplier that works).
bool is_legal(const TinyModel& model, const OracleOptions& options);

/// Asks for what a conversion from `first` keeps unless something else is asked for.
void ask_for_kept_form(const TinyModel& model, const OracleOptions& first, OracleOptions& second);

}  // namespace reshard::test
