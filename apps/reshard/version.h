#pragma once

namespace reshard::cli {

#ifdef RESHARD_VERSION
inline constexpr const char* kVersion = RESHARD_VERSION;
inline constexpr const char* kDescription = RESHARD_DESCRIPTION;
#endif

}  // namespace reshard::cli
