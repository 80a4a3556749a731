#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reshard {

/// What an optimizer's state is called that NxD saves through torch.distributed.checkpoint:
/// "base_state.PARAMETER.STATE|pp-0000|tp-0000" (NxD's trainer/checkpoint.py, use_zero1_dcp). Each rank may be absent.
struct DcpStateKey {
  std::string parameter;
  std::string state;  // without dots
  std::optional<std::uint32_t> pp_rank, tp_rank;
};

/// Whether `name` begins as that of a state does.
bool is_dcp_state_name(std::string_view name);

/// The parts of a state's name; nothing for any other name.
std::optional<DcpStateKey> parse_dcp_state_key(std::string_view name);

}  // namespace reshard
