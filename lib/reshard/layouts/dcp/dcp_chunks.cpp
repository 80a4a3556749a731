#include "reshard/layouts/dcp/dcp_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/dcp/dcp_times.h"

namespace reshard {

ChunkedTensor& DcpChunkFinder::add(const DcpTensor& tensor, std::string name) {
  if (!tensor.dtype)
    throw Error(ErrorKind::kUnsupported,
                "is of dtype " + printable(tensor.torch_dtype) + ", which safetensors does not have")
        .in(where_)
        .tensor(tensor.name);
  const auto index = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back({tensor.name, std::move(name), *tensor.dtype, tensor.shape, {}});
  tensors_.back().chunks.reserve(tensor.chunks.size());
  for (const DcpChunk& chunk : tensor.chunks) {
    wanted_.push_back(
        {index, static_cast<std::uint32_t>(tensors_.back().chunks.size()), &chunk.place, &tensor, &chunk, nullptr});
    tensors_.back().chunks.push_back({chunk.box});
  }
  return tensors_.back();
}

ChunkedTensor& DcpChunkFinder::add(const std::vector<const DcpBytes*>& objects, std::string name) {
  const auto index = static_cast<std::uint32_t>(tensors_.size());
  tensors_.push_back({objects.front()->name, std::move(name), DType::kU8, {}, {}});
  tensors_.back().role = TensorRole::kObject;
  for (const DcpBytes* object : objects) {
    wanted_.push_back(
        {index, static_cast<std::uint32_t>(tensors_.back().chunks.size()), &object->place, nullptr, nullptr, object});
    tensors_.back().chunks.emplace_back();
  }
  return tensors_.back();
}

namespace {

/// \param archives  of the places before, in ascending order: tied tensors have one in common.
void add_archive(std::vector<TensorFile::Archive>& archives, const DcpPlace& place) {
  if (archives.empty() || archives.back().offset_bytes != place.offset_bytes)
    archives.push_back({place.offset_bytes, place.length_bytes});
}

}  // namespace

std::vector<ChunkedTensor> DcpChunkFinder::find() {
  validate_chunks(tensors_, where_);
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) { return a.key() < b.key(); });
  validate_places();
  std::unique_ptr<DcpFile> file;
  std::uint32_t open = 0;  // the number of `file` in the metadata
  std::size_t whole = 0;   // and of all of it among those found
  std::vector<DcpSavedFile> saved;
  sizes_.resize(metadata_.files.size());
  for (const Wanted& one : wanted_) {
    const DcpPlace& place = *one.place;
    if (!file || open != place.file) {
      file = std::make_unique<DcpFile>(files_, directory_ / metadata_.files[place.file]);
      open = place.file;
      add_file(*file, file->size_bytes(), {});
      whole = found_.size() - 1;
      sizes_[open] = file->size_bytes();
      saved.push_back({file->path(), of_file_[open], file->size_bytes()});
    }
    const std::vector<std::string>& transforms = metadata_.transforms[place.transforms];
    DcpItem item =
        one.tensor != nullptr ? file->find(*one.tensor, *one.chunk, transforms) : file->find(*one.object, transforms);
    if (item.frame && found_.back().frame != item.frame) add_file(*file, item.decoded_bytes, item.frame);
    if (!item.frame && file->has_archives()) add_archive(found_[whole].archives, place);
    ChunkedTensor::Chunk& chunk = tensors_[one.index].chunks[one.number];
    chunk.file = static_cast<std::uint32_t>(item.frame ? found_.size() - 1 : whole);
    chunk.offset_bytes = item.tensor.offset_bytes;
    chunk.strides = std::move(item.tensor.strides);
    if (one.object != nullptr) set_size(tensors_[one.index], chunk, item.tensor.size_bytes);
  }
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i]) continue;
    const std::filesystem::path path = directory_ / metadata_.files[i];
    if ((sizes_[i] = dcp_file_size(files_, path))) saved.push_back({path, of_file_[i], *sizes_[i], false});
  }
  validate_dcp_times(files_, saved, notes_);
  return std::move(tensors_);
}

/// Two names of a tied parameter may be one item. But two chunks of a tensor are not, nor do two items overlap.
/// Where torch writes safetensors, all items of a file have one place, and go by the names of tensors.
void DcpChunkFinder::validate_places() const {
  for (std::size_t i = 1; i < wanted_.size(); ++i) {
    const Wanted &a = wanted_[i - 1], &b = wanted_[i];
    if (a.place->file != b.place->file) continue;
    const bool is_one = *a.place == *b.place;
    const bool overlap = !is_one && b.place->offset_bytes - a.place->offset_bytes < a.place->length_bytes;
    if (!overlap && !(is_one && a.index == b.index && b.tensor != nullptr)) continue;
    const std::string& entry = tensors_[b.index].entry;
    throw Error(
        ErrorKind::kBadInput,
        overlap ? fmt::format(".metadata puts it into bytes that belong to {}, too", printable(tensors_[a.index].entry))
                : fmt::format("its chunks at {} and {} would be the same item of this file",
                              to_string(a.chunk->box.begin), to_string(b.chunk->box.begin)))
        .in(directory_ / metadata_.files[b.place->file])
        .tensor(entry)
        .hint(
            "torch keeps only the last chunk of a tensor in a file of SerializationFormat.SAFETENSORS: save again "
            "without");
  }
}

void DcpChunkFinder::add_file(const DcpFile& file, std::uint64_t size_bytes, const std::optional<ZstdFrame>& frame) {
  found_.push_back({file.path(), size_bytes});
  found_.back().stamp = file.stamp();
  found_.back().frame = frame;
}

void DcpChunkFinder::set_size(ChunkedTensor& object, ChunkedTensor::Chunk& chunk, std::uint64_t size_bytes) const {
  if (object.shape.empty()) object.shape = {size_bytes};
  if (object.shape != Dims{size_bytes})
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is an object of {} bytes on one rank, and of {} on another", object.shape[0], size_bytes))
        .in(where_)
        .tensor(object.entry)
        .hint("only what all ranks have in common can be carried over: do without `with-optimizer`");
  chunk.box = whole(object.shape);
}

}  // namespace reshard
