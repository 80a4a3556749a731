#include "reshard/formats/dcp_item.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "reshard/base/checked.h"
#include "reshard/base/strings.h"
#include "reshard/formats/magic.h"
#include "reshard/formats/safetensors.h"
#include "reshard/formats/torch_file.h"

namespace reshard {
namespace {

constexpr std::string_view kZipMagic = "PK\3\4";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr std::size_t kLookBytes = 9;  // the length of a safetensors header, and its first character
constexpr const char* kOtherSave = "the file is of another save than .metadata, or damaged: fetch both again";

/// A range of a file, whose ends are read once: all of a zip's records but for the tensor lie there.
class ItemSource final : public Source {
 public:
  ItemSource(const Source& file, std::uint64_t begin, std::uint64_t size_bytes)
      : file_(file), begin_(begin), size_bytes_(size_bytes) {
    const bool is_short = size_bytes <= 4 * kEndBytes;
    head_.resize(is_short ? size_bytes : kEndBytes);
    tail_.resize(is_short ? 0 : kEndBytes);
    file_.read_at(begin_, head_);
    if (!tail_.empty()) file_.read_at(begin_ + size_bytes_ - tail_.size(), tail_);
  }

  std::uint64_t size_bytes() const override { return size_bytes_; }

  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    const std::uint64_t tail_at = size_bytes_ - tail_.size();
    if (out.empty()) return;
    if (offset_bytes + out.size() <= head_.size())
      std::memcpy(out.data(), head_.data() + offset_bytes, out.size());
    else if (offset_bytes >= tail_at && offset_bytes + out.size() <= size_bytes_)
      std::memcpy(out.data(), tail_.data() + (offset_bytes - tail_at), out.size());
    else
      file_.read_at(begin_ + offset_bytes, out);
  }

 private:
  static constexpr std::size_t kEndBytes = 2048;

  const Source& file_;
  std::uint64_t begin_;
  std::uint64_t size_bytes_;
  std::vector<std::byte> head_;
  std::vector<std::byte> tail_;
};

/// What the `.metadata` and the file say of one chunk.
void validate_same(const DcpTensor& tensor, const DcpChunk& chunk, DType dtype, const Dims& shape) {
  if (dtype == tensor.dtype && shape == chunk.box.size) return;
  throw Error(ErrorKind::kBadInput,
              fmt::format("its chunk at {} is {} {} by .metadata, but {} {} in the file", to_string(chunk.box.begin),
                          name(*tensor.dtype), to_string(chunk.box.size), name(dtype), to_string(shape)));
}

}  // namespace

DcpFile::DcpFile(Files& files, std::filesystem::path path) : path_(std::move(path)), stamp_(files.stamp(path_)) {
  if (files.kind_of(path_) == FileKind::kNone)
    throw Error(ErrorKind::kBadInput, "is missing, though .metadata puts tensors into it")
        .in(path_)
        .hint("a rank's file was not copied, or the save did not finish");
  source_ = files.open(path_);
  std::array<char, kLookBytes> start{};
  if (source_->size_bytes() < start.size()) return;
  source_->read_at(0, std::as_writable_bytes(std::span(start)));
  if (start.back() == '{' && !std::string_view(start.data(), start.size()).starts_with(kZipMagic))
    bucket_ = read_safetensors(*source_, path_);
  for (std::size_t i = 0; bucket_ && i < bucket_->tensors.size(); ++i) in_bucket_.emplace(bucket_->tensors[i].name, i);
}

TensorEntry DcpFile::find(const DcpTensor& tensor, const DcpChunk& chunk) const {
  try {
    return bucket_ ? find_in_bucket(tensor, chunk) : find_zip(tensor, chunk);
  } catch (Error& error) {
    if (error.path().empty()) error.in(path_);
    if (error.tensor().empty()) error.tensor(tensor.name);
    if (error.hint().empty() && error.kind() == ErrorKind::kBadInput) error.hint(kOtherSave);
    throw;
  }
}

TensorEntry DcpFile::find_zip(const DcpTensor& tensor, const DcpChunk& chunk) const {
  const DcpPlace& place = chunk.place;
  const std::uint64_t end = place.offset_bytes + place.length_bytes;
  const std::string where =
      fmt::format("its chunk at {}, bytes {} to {} of the file,", to_string(chunk.box.begin), place.offset_bytes, end);
  if (end > source_->size_bytes())
    throw Error(ErrorKind::kBadInput, fmt::format("{} goes past the file's end, {}", where, source_->size_bytes()));
  const ItemSource item(*source_, place.offset_bytes, place.length_bytes);
  const std::string start = first_bytes(item, kZipMagic.size());
  if (start == kZstdMagic)
    throw Error(ErrorKind::kBadInput, where + " is compressed with zstd, which .metadata does not say");
  if (start != kZipMagic) throw Error(ErrorKind::kBadInput, where + " does not begin like an item of torch.save");
  try {
    const TorchFile file = read_torch_file(item, path_);
    if (!file.is_tensor(file.pickle().root()))
      throw Error(ErrorKind::kBadInput, where + " is " + file.pickle().describe(file.pickle().root()) + ", no tensor");
    TorchTensor found = file.tensor(file.pickle().root(), tensor.name);
    validate_same(tensor, chunk, found.dtype, found.shape);
    return {tensor.name,
            found.dtype,
            std::move(found.shape),
            place.offset_bytes + found.offset_bytes,
            *num_bytes(found.dtype, chunk.box.size),
            0,
            std::move(found.strides)};
  } catch (Error& error) {
    if (error.offset_bytes()) error.at_byte(place.offset_bytes + *error.offset_bytes());
    throw;
  }
}

TensorEntry DcpFile::find_in_bucket(const DcpTensor& tensor, const DcpChunk& chunk) const {
  const auto at = in_bucket_.find(tensor.name);
  if (at == in_bucket_.end())
    throw Error(ErrorKind::kBadInput, "is not in this safetensors file, though .metadata puts a chunk of it there");
  const TensorEntry& found = bucket_->tensors[at->second];
  validate_same(tensor, chunk, found.dtype, found.shape);
  return found;
}

}  // namespace reshard
