#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/zips.h"

namespace reshard::test {

/// A file of torch.save that is being made: each tensor has a storage of its own, which its pickle refers to.
class SavedFile {
 public:
  /// The pickle of a tensor.
  std::string tensor(const TensorData& data);
  /// The same of one dim.
  std::string flat(DType dtype, const std::string& bytes);
  /// Writes the file, of which `root` is the pickled value.
  void save(const std::filesystem::path& path, const std::string& root) const;

 private:
  std::vector<ZipPart> storages_;
};

/// torch.Size, pickled.
std::string pickled_size(const Dims& shape);

}  // namespace reshard::test
