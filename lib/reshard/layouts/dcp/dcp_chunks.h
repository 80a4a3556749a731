#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/base/note.h"
#include "reshard/formats/dcp/dcp_item.h"
#include "reshard/io/files.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Finds the chunks of the wanted tensors and objects in the files of one directory. Opens each file once.
class DcpChunkFinder {
 public:
  /// Borrows all arguments. `found` receives the files, and `notes` receives warnings about their modification times.
  DcpChunkFinder(Files& files, const std::filesystem::path& directory, const DcpDirectory& metadata,
                 std::vector<SourceFile>& found, Notes& notes)
      : files_(files),
        directory_(directory),
        where_(metadata.where),
        metadata_(metadata.all),
        of_file_(metadata.of_file),
        found_(found),
        notes_(notes) {}

  /// Adds a tensor under its name in the model, without chunks yet. The reference stays valid until the next call.
  /// \throws Error kUnsupported for a dtype that safetensors does not support.
  ChunkedTensor& add(const DcpTensor& tensor, std::string name);

  /// Adds an object. If several ranks have saved it, their objects must be equal.
  ChunkedTensor& add(const std::vector<const DcpBytes*>& objects, std::string name);

  /// Returns the tensors and objects in the order of the add() calls, with chunks in the order of the metadata.
  /// \throws Error kBadInput for chunks that do not fill their tensor, share bytes, or are not in any file; as
  ///         DcpFile::find and validate_dcp_times.
  std::vector<ChunkedTensor> find();

  /// Sizes of the files in the metadata, in its order, as find() read them; std::nullopt if a file does not exist.
  const std::vector<std::optional<std::uint64_t>>& sizes_bytes() const { return sizes_; }

 private:
  struct Wanted {
    std::uint32_t index;   // into tensors_
    std::uint32_t number;  // number of the chunk in the tensor
    const DcpPlace* place;
    const DcpTensor* tensor;  // null for an object
    const DcpChunk* chunk;
    const DcpBytes* object;  // null for a tensor

    std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t> key() const {
      return std::tuple(place->file, place->offset_bytes, place->length_bytes, index);
    }
  };

  /// Results of find_in_file. ChunkedTensor::Chunk::file is an index into `files` until find() adds them to all files.
  struct FoundInFile {
    std::vector<SourceFile> files;            // the file, then one entry per compressed range
    std::vector<std::uint64_t> object_bytes;  // sizes of the wanted objects, in order
  };

  void validate_places() const;
  FoundInFile find_in_file(std::span<const Wanted> wanted);
  void set_size(ChunkedTensor& object, ChunkedTensor::Chunk& chunk, std::uint64_t size_bytes) const;

  Files& files_;
  const std::filesystem::path& directory_;
  const std::filesystem::path& where_;
  const DcpMetadata& metadata_;
  const std::vector<std::filesystem::path>& of_file_;
  std::vector<SourceFile>& found_;
  Notes& notes_;
  std::vector<ChunkedTensor> tensors_;
  std::vector<Wanted> wanted_;
  std::vector<std::optional<std::uint64_t>> sizes_;
};

}  // namespace reshard
