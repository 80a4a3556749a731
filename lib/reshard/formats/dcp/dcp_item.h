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
#include "reshard/io/files.h"
#include "reshard/io/zstd_source.h"

namespace reshard {

/// A chunk's elements in a file, or in what a range of the file decodes to.
struct DcpItem {
  TensorEntry tensor;
  std::optional<ZstdFrame> frame;   // if there is one, `tensor.offset_bytes` is in what it decodes to
  std::uint64_t decoded_bytes = 0;  // of all that it decodes to
};

/// One file that a `.metadata` names: items of torch.save, each a whole zip archive, anywhere in the file
/// (torch/distributed/checkpoint/filesystem.py, 2.0 to 2.9). One that begins like safetensors is a bucket of
/// SerializationFormat.SAFETENSORS (2.8), in which a chunk goes by the name of its tensor.
class DcpFile {
 public:
  /// \throws Error kBadInput, saying that `.metadata` names it, if there is no such file; kIo.
  DcpFile(Files& files, std::filesystem::path path);
  DcpFile(const DcpFile&) = delete;  // a copy's names would point into the original
  DcpFile& operator=(const DcpFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size_bytes() const { return source_->size_bytes(); }
  const FileStamp& stamp() const { return stamp_; }
  /// Whether its items are zip archives, unless they are compressed.
  bool has_archives() const { return !bucket_; }

  /// Where the elements of a chunk lie. Reads the ends of its item and no tensor's bytes. A compressed item is decoded
  /// whole, once for calls in a row that name the same one. `tensor` has a known dtype; `transforms` are the item's, as
  /// DcpMetadata has them.
  /// \throws Error kBadInput, naming the tensor, if the item does not lie in the file, is damaged, does not end where
  ///         it should, or is another tensor than the chunk; kUnsupported for other transforms than zstd; kIo.
  DcpItem find(const DcpTensor& tensor, const DcpChunk& chunk, const std::vector<std::string>& transforms = {});

  /// Where the bytes lie that torch.save made of an object, as uint8 of one dim. Of them the zip's last record is read,
  /// and nothing of the object.
  /// \throws as the other, but for what is said of tensors.
  DcpItem find(const DcpBytes& object, const std::vector<std::string>& transforms = {});

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
  std::optional<std::pair<ZstdFrame, ZstdEnds>> decoded_;  // the last one
  std::uint64_t decoded_object_bytes_ = 0;
  std::optional<Container> bucket_;
  std::vector<Dims> bucket_offsets_;  // of its tensors in whole ones; empty where its metadata does not say them
  std::unordered_map<std::string_view, std::size_t> in_bucket_;  // tensors by name
};

}  // namespace reshard
