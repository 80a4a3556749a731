#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reshard/formats/dcp/dcp_item.h"
#include "reshard/io/files.h"
#include "reshard/layouts/dcp/dcp_directory.h"
#include "reshard/layouts/map/chunked_map.h"
#include "reshard/layouts/map/tensor_map.h"

namespace reshard {

/// Finds in the files the chunks of what is wanted of one directory; each file is opened once.
class DcpChunkFinder {
 public:
  /// Borrows all. `found` gets the files, `notes` what is odd about their times.
  DcpChunkFinder(Files& files, const std::filesystem::path& directory, const DcpDirectory& metadata,
                 std::vector<SourceFile>& found, std::vector<std::string>& notes)
      : files_(files),
        directory_(directory),
        where_(metadata.where),
        metadata_(metadata.all),
        of_file_(metadata.of_file),
        found_(found),
        notes_(notes) {}

  /// A tensor under the model's name for it, without chunks yet; valid until the next one.
  /// \throws Error kUnsupported for a dtype that safetensors does not have.
  ChunkedTensor& add(const DcpTensor& tensor, std::string name);

  /// An object; of several ranks, all have to be the same.
  ChunkedTensor& add(const std::vector<const DcpBytes*>& objects, std::string name);

  /// In the order in which they were added, each with its chunks in the order of the metadata.
  /// \throws Error kBadInput for chunks that do not fill their tensor, share bytes, or lie in no file; as DcpFile::find
  ///         and validate_dcp_times do.
  std::vector<ChunkedTensor> find();

  /// Of the files that the metadata names, in its order, as find() has seen them; nothing for one that is not there.
  const std::vector<std::optional<std::uint64_t>>& sizes_bytes() const { return sizes_; }

 private:
  struct Wanted {
    std::uint32_t index;   // into tensors_
    std::uint32_t number;  // of its chunk
    const DcpPlace* place;
    const DcpTensor* tensor;  // or null
    const DcpChunk* chunk;
    const DcpBytes* object;  // or null

    std::tuple<std::uint32_t, std::uint64_t, std::uint64_t, std::uint32_t> key() const {
      return std::tuple(place->file, place->offset_bytes, place->length_bytes, index);
    }
  };

  /// What find_in_file finds besides the chunks, whose `file` counts in `files` until find() counts in all.
  struct FoundInFile {
    std::vector<SourceFile> files;            // the file, then what compressed ranges of it decode to
    std::vector<std::uint64_t> object_bytes;  // sizes of the objects wanted, in their order
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
  std::vector<std::string>& notes_;
  std::vector<ChunkedTensor> tensors_;
  std::vector<Wanted> wanted_;
  std::vector<std::optional<std::uint64_t>> sizes_;
};

}  // namespace reshard
