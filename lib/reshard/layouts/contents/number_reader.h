#pragma once

#include <span>

#include "reshard/formats/pickle/plain_value.h"
#include "reshard/io/files.h"
#include "reshard/layouts/contents/opened_files.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Reads tensors of no dims, which are numbers: torch's optimizers count their steps in such.
class NumberReader {
 public:
  /// All is borrowed.
  NumberReader(Files& files, std::span<const SourceFile> in_files) : opened_(files, in_files) {}

  static bool can_read(const LogicalTensor& tensor);

  /// \param tensor  of what can_read.
  /// \throws Error kIo.
  PlainValue read(const StoredTensor& tensor);

 private:
  OpenedFiles opened_;
};

}  // namespace reshard
