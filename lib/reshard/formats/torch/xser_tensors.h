// Files that an xser file refers to (torch_xla/utils/serialization.py): PATH.tensors/tensor_TID.pt, each a torch.save
// file with one tensor, and PATH.info.pt, which contains dtypes and shapes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/files.h"

namespace reshard {

class XserInfo;

/// Resolves the references of a file. Reads each tensor file once, and opens one at a time.
class XserTensors {
 public:
  /// Borrows `file`. `own` describes `file` and becomes the first of files(). Reads PATH.info.pt if it exists.
  /// \throws Error like read_torch_file.
  XserTensors(Files& files, const TorchFile& file, ContainerFile own);
  ~XserTensors();
  XserTensors(const XserTensors&) = delete;
  XserTensors& operator=(const XserTensors&) = delete;

  /// Returns the tensor of `reference` (is_xser_reference); `name` is used for errors and the result.
  /// \throws Error like read_torch_file and TorchFile::tensor; kBadInput if the tensor's file is missing, belongs to
  ///         another rank, or contradicts PATH.info.pt.
  TensorEntry read(PickleRef reference, const std::string& name);
  /// Returns an entry without bytes, with dtype and shape from PATH.info.pt. The tensor's file may be missing.
  /// \throws Error kBadInput if PATH.info.pt lacks them.
  TensorEntry described(PickleRef reference, const std::string& name) const;
  bool is_expert_parallel(PickleRef reference, const std::string& name) const;
  /// Whether the tensor's file is missing although PATH.info.pt lists the tensor, as not split over expert-parallel
  /// ranks.
  bool is_elsewhere(PickleRef reference, const std::string& name) const;

  /// Files that were read, in the order of the calls, each with a stamp from before it was read.
  const std::vector<ContainerFile>& files() const { return opened_; }
  /// Same as StorageUse::warn.
  void warn(std::vector<std::string>& warnings) const;

 private:
  struct Storage;

  std::uint64_t tid_of(PickleRef reference, const std::string& name) const;
  TensorEntry open(std::uint64_t tid, const std::string& name);

  Files& files_;
  const TorchFile& file_;
  std::unique_ptr<XserInfo> info_;
  std::unique_ptr<Storage> storage_;
  std::vector<ContainerFile> opened_;
  std::map<std::uint64_t, TensorEntry> by_tid_;
};

}  // namespace reshard
