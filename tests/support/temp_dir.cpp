#include "support/temp_dir.h"

#include <cstdlib>
#include <stdexcept>

namespace reshard::test {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "reshard-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace reshard::test
