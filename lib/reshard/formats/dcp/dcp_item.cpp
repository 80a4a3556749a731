#include "reshard/formats/dcp/dcp_item.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/magic.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/dcp/dcp_shards.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/torch_tensor.h"
#include "reshard/formats/zip/zip_end.h"

namespace reshard {
namespace {

constexpr std::string_view kZipMagic = "PK\3\4";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr std::size_t kBucketStartBytes = 9;  // the length of a safetensors header, and its first character
constexpr const char* kOtherSave = "the file belongs to another save than .metadata, or is damaged: fetch both again";
constexpr const char* kLostChunk = "the other chunks are lost: save again without SerializationFormat.SAFETENSORS";

// All records of a zip archive except the tensor are within this distance of its ends.
constexpr std::size_t kTailBytes = 2048;
/// Maximum size of an item beyond its tensor: the records of the archive.
constexpr std::uint64_t kMostRecordBytes = std::uint64_t{1} << 20;
constexpr const char* kZstdTransform = "stream.zstd/1";
/// Maximum total size of all compressed objects of a file, as a limit for decompression bombs.
constexpr std::uint64_t kMostObjectBytes = std::uint64_t{1} << 32;

/// The ends of an item. Reads of other bytes fail.
class ItemSource final : public Source {
 public:
  ItemSource(std::uint64_t size_bytes, std::vector<std::byte> head, std::vector<std::byte> tail)
      : size_bytes_(size_bytes), head_(std::move(head)), tail_(std::move(tail)) {}

  std::uint64_t size_bytes() const override { return size_bytes_; }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    const std::uint64_t tail_at = size_bytes_ - tail_.size();
    if (out.empty()) return;
    if (offset_bytes + out.size() <= head_.size())
      std::memcpy(out.data(), head_.data() + offset_bytes, out.size());
    else if (offset_bytes >= tail_at && offset_bytes + out.size() <= size_bytes_)
      std::memcpy(out.data(), tail_.data() + (offset_bytes - tail_at), out.size());
    else
      throw Error(ErrorKind::kUnsupported, "its item has records at other offsets than torch.save uses")
          .at_byte(offset_bytes);
  }

 private:
  std::uint64_t size_bytes_;
  std::vector<std::byte> head_;
  std::vector<std::byte> tail_;
};

/// A range of a file. Reads its ends once, when it is opened.
class RangeSource final : public Source {
 public:
  RangeSource(const Source& file, std::uint64_t begin, std::uint64_t size_bytes)
      : file_(file), begin_(begin), ends_(read_ends(file, begin, size_bytes)) {}

  std::uint64_t size_bytes() const override { return ends_.size_bytes(); }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    const std::uint64_t end = offset_bytes + out.size();
    if (size_bytes() <= 2 * kTailBytes || end <= kTailBytes || offset_bytes >= size_bytes() - kTailBytes)
      ends_.read_at(offset_bytes, out);
    else
      file_.read_at(begin_ + offset_bytes, out);
  }

 private:
  static ItemSource read_ends(const Source& file, std::uint64_t begin, std::uint64_t size_bytes) {
    const bool is_short = size_bytes <= 2 * kTailBytes;
    std::vector<std::byte> head(is_short ? size_bytes : kTailBytes), tail(is_short ? 0 : kTailBytes);
    file.read_at(begin, head);
    if (!tail.empty()) file.read_at(begin + size_bytes - tail.size(), tail);
    return {size_bytes, std::move(head), std::move(tail)};
  }

  const Source& file_;
  std::uint64_t begin_;
  ItemSource ends_;
};

/// Validates that the dtype and shape of a chunk in the file match `.metadata`.
void validate_same(const DcpTensor& tensor, const DcpChunk& chunk, DType dtype, const Dims& shape) {
  if (dtype == tensor.dtype && shape == chunk.box.size) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("its chunk at {} is {} {} in .metadata, but {} {} in the file", to_string(chunk.box.begin),
                          name(*tensor.dtype), to_string(chunk.box.size), name(dtype), to_string(shape)));
}

}  // namespace

DcpFile::DcpFile(Files& files, std::filesystem::path path) : path_(std::move(path)), stamp_(files.stamp(path_)) {
  if (files.kind_of(path_) == FileKind::kNone)
    throw Error(ErrorKind::kBadInput, "is missing, though .metadata lists tensors in it")
        .in(path_)
        .hint("a rank file was not copied, or the save is incomplete");
  source_ = open_weights(files, path_);
  std::array<char, kBucketStartBytes> start{};
  if (source_->size_bytes() < start.size()) return;
  source_->read_at(0, std::as_writable_bytes(std::span(start)));
  if (start.back() == '{' && !std::string_view(start.data(), start.size()).starts_with(kZipMagic))
    bucket_ = read_safetensors(*source_, path_);
  if (bucket_ && has_saved_offsets(bucket_->metadata)) bucket_offsets_ = read_saved_offsets(*bucket_);
  for (std::size_t i = 0; bucket_ && i < bucket_->tensors.size(); ++i) in_bucket_.emplace(bucket_->tensors[i].name, i);
}

/// An item that can be read: a range of the file, or the decompressed bytes of a range.
struct DcpFile::Range {
  std::unique_ptr<Source> item;
  std::optional<ZstdFrame> frame;
  std::uint64_t begin = 0;  // offset of the item in the file; 0 if decompressed
};

namespace {

/// Adds the path and the name to errors of `find`.
template <typename Find>
auto find_in(const std::filesystem::path& path, const std::string& name, const Find& find) {
  try {
    return find();
  } catch (Error& error) {
    if (error.path().empty()) error.in(path);
    if (error.tensor().empty()) error.tensor(name);
    if (error.hint().empty() && error.kind() == ErrorKind::kBadInput) error.hint(kOtherSave);
    throw;
  }
}

/// Converts byte offsets in errors from the item to the file.
template <typename Read>
auto read_at_offset(std::uint64_t begin, const Read& read) {
  try {
    return read();
  } catch (Error& error) {
    if (error.offset_bytes() && begin > 0) error.at_byte(begin + *error.offset_bytes());
    throw;
  }
}

}  // namespace

DcpItem DcpFile::find(const DcpTensor& tensor, const DcpChunk& chunk, const std::vector<std::string>& transforms) {
  return find_in(path_, tensor.name, [&]() -> DcpItem {
    if (bucket_) return {find_in_bucket(tensor, chunk), {}, 0};
    const DcpPlace& place = chunk.place;
    const std::string where = fmt::format("its chunk at {}, bytes {} to {} of the file,", to_string(chunk.box.begin),
                                          place.offset_bytes, place.offset_bytes + place.length_bytes);
    const Range range =
        open_range(place, transforms, *num_bytes(*tensor.dtype, chunk.box.size) + kMostRecordBytes, where);
    return read_at_offset(range.begin, [&] {
      DcpItem found{read_zip(*range.item, tensor, chunk, where), range.frame, 0};
      if (range.frame) found.decoded_bytes = range.item->size_bytes();
      found.tensor.offset_bytes += range.begin;
      return found;
    });
  });
}

DcpItem DcpFile::find(const DcpBytes& object, const std::vector<std::string>& transforms) {
  return find_in(path_, object.name, [&]() -> DcpItem {
    const DcpPlace& place = object.place;
    if (bucket_) throw Error(ErrorKind::kUnsupported, "is not a tensor, but .metadata lists it in a safetensors file");
    const std::string where =
        fmt::format("bytes {} to {} of the file", place.offset_bytes, place.offset_bytes + place.length_bytes);
    const Range range = open_range(place, transforms, kMostObjectBytes - decoded_object_bytes_, where);
    const std::uint64_t size_bytes = range.item->size_bytes();
    if (range.frame) decoded_object_bytes_ += size_bytes;
    if (first_bytes(*range.item, kZipMagic.size()) != kZipMagic)
      throw Error(ErrorKind::kBadInput, where + " do not begin like an item of torch.save");
    read_at_offset(range.begin, [&] { return find_zip_directory(*range.item, path_); });
    const TensorEntry bytes{object.name, DType::kU8, {size_bytes}, range.begin, size_bytes};
    return {bytes, range.frame, range.frame ? size_bytes : 0};
  });
}

std::vector<PickleName> DcpFile::pickle_names(const DcpPlace& place, const std::vector<std::string>& transforms) {
  if (bucket_) return {};
  return find_in(path_, {}, [&] {
    const std::string where =
        fmt::format("bytes {} to {} of the file", place.offset_bytes, place.offset_bytes + place.length_bytes);
    const Range range = open_range(place, transforms, kMostObjectBytes, where);
    return read_at_offset(range.begin, [&] { return read_pickle_names(*range.item, path_); });
  });
}

DcpFile::Range DcpFile::open_range(const DcpPlace& place, const std::vector<std::string>& transforms,
                                   std::uint64_t most_bytes, const std::string& where) {
  if (place.offset_bytes + place.length_bytes > source_->size_bytes())
    throw Error(ErrorKind::kBadInput, fmt::format("{} goes past the file's end, {}", where, source_->size_bytes()));
  if (transforms.empty())
    return {std::make_unique<RangeSource>(*source_, place.offset_bytes, place.length_bytes), {}, place.offset_bytes};
  if (transforms.size() != 1 || transforms.front() != kZstdTransform)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} is transformed by {}, which is not supported", where, list_names(transforms)))
        .hint("load it with torch and the extension that wrote it, and save it without");
  const ZstdFrame frame{place.offset_bytes, place.length_bytes};
  // Many names may refer to the same item, which is decoded once.
  if (!decoded_ || decoded_->first != frame)
    decoded_.emplace(frame, read_zstd_ends(*source_, frame, kTailBytes, most_bytes, path_));
  const ZstdEnds& ends = decoded_->second;
  return {std::make_unique<ItemSource>(ends.size_bytes, ends.head, ends.tail), frame, 0};
}

TensorEntry DcpFile::read_zip(const Source& item, const DcpTensor& tensor, const DcpChunk& chunk,
                              const std::string& where) const {
  const std::string start = first_bytes(item, kZipMagic.size());
  if (start == kZstdMagic)
    throw Error(ErrorKind::kBadInput, where + " is compressed with zstd, but .metadata lists no transform for it");
  if (start != kZipMagic) throw Error(ErrorKind::kBadInput, where + " does not begin like an item of torch.save");
  const TorchFile file = read_torch_file(item, path_);
  if (!file.is_tensor(file.pickle().root()))
    throw Error(ErrorKind::kBadInput, where + " is " + file.pickle().describe(file.pickle().root()) + ", no tensor");
  TorchTensor found = file.tensor(file.pickle().root(), tensor.name);
  validate_same(tensor, chunk, found.dtype, found.shape);
  // torch stores each element of a chunk: what makes many of one is not its own.
  if (found.size_bytes > item.size_bytes())
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} has {} bytes for elements of {}", where, item.size_bytes(), found.size_bytes));
  return found;
}

TensorEntry DcpFile::find_in_bucket(const DcpTensor& tensor, const DcpChunk& chunk) const {
  const auto at = in_bucket_.find(tensor.name);
  if (at == in_bucket_.end())
    throw Error(ErrorKind::kBadInput, "is not in this safetensors file, though .metadata lists a chunk of it there");
  const TensorEntry& found = bucket_->tensors[at->second];
  if (!bucket_offsets_.empty() && bucket_offsets_[at->second] != chunk.box.begin)
    throw Error(ErrorKind::kBadInput,
                fmt::format("its chunk at {} is not in this safetensors file, which contains the chunk at {}: torch "
                            "keeps only the last chunk of a tensor in such a file",
                            to_string(chunk.box.begin), to_string(bucket_offsets_[at->second])))
        .hint(kLostChunk);
  validate_same(tensor, chunk, found.dtype, found.shape);
  return found;
}

}  // namespace reshard
