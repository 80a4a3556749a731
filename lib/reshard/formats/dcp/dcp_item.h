#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "reshard/formats/common/container.h"
#include "reshard/formats/dcp/dcp_metadata.h"
#include "reshard/formats/pickle/pickle_contents.h"
#include "reshard/io/files.h"
#include "reshard/io/zstd_source.h"

namespace reshard {

/// The elements of a chunk in a file, or in the decompressed bytes of a range of the file.
struct DcpItem {
  TensorEntry tensor;
  std::optional<ZstdFrame> frame;   // if set, `tensor.offset_bytes` is an offset in the decompressed bytes
  std::uint64_t decoded_bytes = 0;  // total decompressed size of the frame
};

/// A file that `.metadata` names. Its items are written by torch.save, each a complete zip archive, at any offset
/// (torch/distributed/checkpoint/filesystem.py, 2.0 to 2.9). A file that begins like safetensors is a bucket of
/// SerializationFormat.SAFETENSORS (2.8), in which each chunk has the name of its tensor.
class DcpFile {
 public:
  /// \throws Error kBadInput, stating that `.metadata` names the file, if it does not exist; kIo.
  DcpFile(Files& files, std::filesystem::path path);
  DcpFile(const DcpFile&) = delete;  // a copy's names would point into the original
  DcpFile& operator=(const DcpFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size_bytes() const { return source_->size_bytes(); }
  const FileStamp& stamp() const { return stamp_; }
  /// Whether its items are zip archives, possibly compressed.
  bool has_archives() const { return !bucket_; }

  /// Locates the elements of a chunk. Reads the ends of its item but no tensor data. A compressed item is decoded
  /// completely, once for consecutive calls with the same item. `tensor` must have a known dtype; `transforms` are
  /// those of the item in DcpMetadata.
  /// \throws Error kBadInput, naming the tensor, if the item is not inside the file, is damaged, does not end where it
  ///         should, or contains another tensor than the chunk; kUnsupported for transforms other than zstd; kIo.
  DcpItem find(const DcpTensor& tensor, const DcpChunk& chunk, const std::vector<std::string>& transforms = {});

  /// Locates the bytes of an object as torch.save wrote them, as uint8 with one dim. Reads only the end record of the
  /// zip archive.
  /// \throws like the other overload, except for errors about tensors.
  DcpItem find(const DcpBytes& object, const std::vector<std::string>& transforms = {});

  /// Returns the classes and functions of an item's pickle; none in a file of safetensors.
  /// \throws Error like read_pickle_names, and like `find` for a place that cannot be read.
  std::vector<PickleName> pickle_names(const DcpPlace& place, const std::vector<std::string>& transforms = {});

 private:
  struct Range;
  Range open_range(const DcpPlace& place, const std::vector<std::string>& transforms, std::uint64_t most_bytes,
                   const std::string& where);
  TensorEntry read_zip(const Source& item, const DcpTensor& tensor, const DcpChunk& chunk,
                       const std::string& where) const;
  TensorEntry find_in_bucket(const DcpTensor& tensor, const DcpChunk& chunk) const;

  std::filesystem::path path_;
  FileStamp stamp_;
  std::unique_ptr<Source> source_;
  std::optional<std::pair<ZstdFrame, ZstdEnds>> decoded_;  // the last decoded item
  std::uint64_t decoded_object_bytes_ = 0;
  std::optional<Container> bucket_;
  std::vector<Dims> bucket_offsets_;  // offset of each tensor in its logical tensor; empty if the metadata lacks them
  std::unordered_map<std::string_view, std::size_t> in_bucket_;  // index of each tensor, by name
};

}  // namespace reshard
