// Files of torch.save (torch/serialization.py): a pickle and the storages that its tensors are views of, in an archive
// or, before torch 1.6, in a stream.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/common/container_keys.h"
#include "reshard/formats/pickle/pickle.h"
#include "reshard/formats/pickle/pickle_contents.h"
#include "reshard/formats/torch/torch_tensor.h"
#include "reshard/io/files.h"

namespace reshard {

/// A range of bytes that tensors are views of.
struct TorchStorage {
  std::string key;
  std::uint64_t offset_bytes = 0;  // from the start of the file
  std::uint64_t size_bytes = 0;
};

/// A torch.save file: the tree of its pickle, and the locations of its storages. Invariant, validated by
/// read_torch_file: the storages are inside the file and do not overlap.
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
  /// Sorted by key.
  std::span<const TorchStorage> storages() const { return storages_; }

  /// Metadata in kArchiveMetadataEntry; empty if absent.
  const FileMetadata& metadata() const { return metadata_; }

  /// Whether Python would create a tensor from `node`, of a supported kind or not.
  bool is_tensor(PickleRef node) const;

  /// Returns the tensor that `node` represents.
  /// \throws Error kBadInput if it is inconsistent or extends beyond its storage; kUnsupported if it is sparse,
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

/// Reads the pickle and locates the storages, but reads no tensor data. `path` is used for errors and the result. Does
/// not keep a reference to `source`.
/// \throws Error kBadInput if the file is damaged, not a torch file, or runs code when Python loads it; kUnsupported
///         for TorchScript, big-endian files and formats before torch 0.1.10; kIo.
TorchFile read_torch_file(const Source& source, const std::filesystem::path& path);

/// Whether a file begins like one of safetensors, whatever its name.
bool is_safetensors(const Source& source);

/// Whether a file is one of torch.save, or a pickle by itself. Reads files that begin like neither as pickles of
/// protocol 0, which have no mark, if they are small enough.
bool holds_pickle(const Source& source, const std::filesystem::path& path);

/// Returns the classes and functions of a file of torch.save, or of a pickle by itself, such as `.metadata` of DCP.
/// \throws Error like read_torch_file.
std::vector<PickleName> read_pickle_names(const Source& source, const std::filesystem::path& path);

/// Reads the state dict of a torch.save file (see find_state_dict), with tensors in its order. Ignores values that are
/// not tensors. `warnings` report both.
/// \throws Error like read_torch_file and TorchFile::tensor; kUnsupported if there is no unique state dict.
Container read_torch(const Source& source, const std::filesystem::path& path);

}  // namespace reshard
