#pragma once

#include <span>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Reads numbers that are stored as tensors without dims, such as the step counts of torch's optimizers.
class NumberReader {
 public:
  /// Borrows both.
  NumberReader(Files& files, std::span<const SourceFile> in_files) : opened_(files, in_files) {}

  static bool can_read(const LogicalTensor& tensor);

  /// Requires can_read for the logical tensor.
  /// \throws Error kIo.
  PlainValue read(const StoredTensor& tensor);

 private:
  OpenedFiles opened_;
};

}  // namespace reshard
