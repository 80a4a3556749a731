// What an xser file refers to (torch_xla/utils/serialization.py): PATH.tensors/tensor_TID.pt, each a file of torch.save
// with one tensor, and PATH.info.pt, which says dtypes and shapes.
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

/// Reads what the references of one file refer to, each tensor file once, and one open at a time.
class XserTensors {
 public:
  /// `file` is borrowed; `files` in the result begin with `own`, which is it. PATH.info.pt is read where it is there.
  /// \throws Error as read_torch_file.
  XserTensors(Files& files, const TorchFile& file, ContainerFile own);
  ~XserTensors();
  XserTensors(const XserTensors&) = delete;
  XserTensors& operator=(const XserTensors&) = delete;

  /// The tensor that `reference` is (is_xser_reference); `name` is for errors and the result.
  /// \throws Error as read_torch_file and TorchFile::tensor; kBadInput where the tensor's file is missing, is another
  ///         rank's, or holds something else than PATH.info.pt says.
  TensorEntry read(PickleRef reference, const std::string& name);
  /// The dtype and shape of it as PATH.info.pt says them, where its file need not be: an entry without bytes.
  /// \throws Error kBadInput if the info does not say them.
  TensorEntry described(PickleRef reference, const std::string& name) const;
  bool is_expert_parallel(PickleRef reference, const std::string& name) const;

  /// Files that were read, in the order of the calls, each with a stamp from before.
  const std::vector<ContainerFile>& files() const { return opened_; }
  /// As StorageUse::warn.
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
