#include "support/unprivileged.h"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace reshard::test {
namespace {

constexpr uid_t kNobody = 65534;

void give_to_nobody(const std::filesystem::path& path) {
  if (::lchown(path.c_str(), kNobody, kNobody) != 0) throw std::runtime_error("cannot chown " + path.string());
}

}  // namespace

Unprivileged::Unprivileged(const std::filesystem::path& directory) : was_root_(::geteuid() == 0) {
  if (!was_root_) return;
  give_to_nobody(directory);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) give_to_nobody(entry.path());
  if (::seteuid(kNobody) != 0) throw std::runtime_error("cannot become nobody");
}

Unprivileged::~Unprivileged() {
  if (was_root_ && ::seteuid(0) != 0) std::abort();  // what runs next would be another test than it says
}

}  // namespace reshard::test
