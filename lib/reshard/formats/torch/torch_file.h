// Files of torch.save (torch/serialization.py): an archive or, before torch 1.6, a stream, of one pickle and the
// storages that its tensors are views of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/container_keys.h"
#include "reshard/formats/pickle/pickle.h"
#include "reshard/formats/torch/torch_tensor.h"
#include "reshard/io/files.h"

namespace reshard {

/// A run of bytes that tensors are views of.
struct TorchStorage {
  std::string key;
  std::uint64_t offset_bytes = 0;  // from the start of the file
  std::uint64_t size_bytes = 0;
};

/// One file of torch.save: the tree of its pickle, and where its storages lie. Invariant, validated by read_torch_file:
/// the storages lie inside the file, none over another.
class TorchFile {
 public:
  TorchFile(std::filesystem::path path, std::uint64_t size_bytes, std::vector<char> stream, Pickle pickle,
            std::vector<TorchStorage> storages, FileMetadata metadata = {});
  TorchFile(const TorchFile&) = delete;  // a copy's texts would point into the original
  TorchFile& operator=(const TorchFile&) = delete;
  TorchFile(TorchFile&&) = default;
  TorchFile& operator=(TorchFile&&) = default;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size_bytes() const { return size_bytes_; }
  const Pickle& pickle() const { return pickle_; }
  /// By key.
  std::span<const TorchStorage> storages() const { return storages_; }

  /// What the file says of itself in kArchiveMetadataEntry; empty where it has none.
  const FileMetadata& metadata() const { return metadata_; }

  /// Whether Python would make a tensor of `node`, of a kind that is understood here or not.
  bool is_tensor(PickleRef node) const;

  /// The tensor that `node` stands for.
  /// \throws Error kBadInput if it contradicts itself or does not lie inside its storage; kUnsupported if it is sparse,
  ///         quantised, of a dtype that safetensors lacks, a conjugate view or a subclass with a format of its own.
  TorchTensor tensor(PickleRef node, const std::string& name) const;

 private:
  std::filesystem::path path_;
  std::uint64_t size_bytes_;
  std::vector<char> stream_;  // the texts of pickle_ point into it
  Pickle pickle_;
  std::vector<TorchStorage> storages_;
  FileMetadata metadata_;
};

/// Reads the pickle and finds the storages, but reads no byte of a tensor. `path` is what errors and the result call
/// the file; nothing is kept of `source`.
/// \throws Error kBadInput for what is damaged, no file of torch's, or runs code when Python loads it; kUnsupported for
///         TorchScript, big-endian files and the formats before torch 0.1.10; kIo.
TorchFile read_torch_file(const Source& source, const std::filesystem::path& path);

/// The state dict in a file of torch.save, tensors in its own order, which find_state_dict finds; what is no tensor is
/// left aside. `warnings` say both.
/// \throws Error as read_torch_file and TorchFile::tensor do; kUnsupported where there is no one state dict.
Container read_torch(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
