#include "reshard/base/paths.h"

#include <algorithm>

namespace reshard {

bool lies_inside(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

}  // namespace reshard
