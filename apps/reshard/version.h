#pragma once

namespace reshard::cli {

#ifdef RESHARD_VERSION
inline constexpr const char* kVersion = RESHARD_VERSION;
#endif

}  // namespace reshard::cli
