#include "reshard/plan/job/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "reshard/formats/pickle/saved_value.h"
#include "reshard/layouts/map/rank_record.h"

namespace reshard {
namespace {

/// Hashes a sequence of values. A list begins with its length, and an optional value with whether it exists, so that
/// different sequences never have the same bytes.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_ || XXH3_128bits_reset(state_.get()) != XXH_OK) throw std::bad_alloc();
  }

  void number(std::uint64_t value) {
    if (used_ + sizeof value > buffer_.size()) empty_buffer();
    for (unsigned byte = 0; byte < sizeof value; ++byte)  // little-endian on all machines
      buffer_[used_++] = static_cast<unsigned char>(value >> (8 * byte));
  }
  template <typename Enum>
  void choice(Enum value) {
    number(static_cast<std::uint64_t>(value));
  }
  void text(std::string_view value) {
    number(value.size());
    empty_buffer();
    XXH3_128bits_update(state_.get(), value.data(), value.size());
  }
  /// Hashes the path in generic notation.
  void path(const std::filesystem::path& value) { text(value.generic_string()); }
  void maybe(const std::optional<std::uint64_t>& value) {
    number(value ? 1 : 0);
    number(value.value_or(0));
  }
  void dims(const Dims& value) {
    number(value.size());
    for (const std::uint64_t size : value) number(size);
  }
  template <typename List, typename Add>
  void list(const List& values, Add&& add) {
    number(values.size());
    for (const auto& value : values) add(value);
  }

  Fingerprint result() {
    empty_buffer();
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return {hash.high64, hash.low64};
  }

 private:
  void empty_buffer() {
    XXH3_128bits_update(state_.get(), buffer_.data(), used_);
    used_ = 0;
  }

  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
  std::array<unsigned char, 4096> buffer_;  // each call of the library has overhead
  std::size_t used_ = 0;
};

void add(Hasher& hasher, const Box& box) {
  hasher.dims(box.begin);
  hasher.dims(box.size);
}

void add(Hasher& hasher, const Piece& piece) {
  hasher.number(piece.stored);
  add(hasher, piece.box);
  hasher.dims(piece.stored_begin);
}

void add(Hasher& hasher, const Check& check) {
  hasher.number(check.stored);
  hasher.choice(check.reason);
  hasher.number(check.may_drift);
  hasher.number(check.may_differ);
  add(hasher, check.box);
  hasher.dims(check.stored_begin);
}

template <typename Part>
void add(Hasher& hasher, const std::vector<Part>& parts) {
  hasher.list(parts, [&](const Part& part) { add(hasher, part); });
}

void add(Hasher& hasher, const StoredTensor& tensor) {
  hasher.text(tensor.name.text());
  hasher.choice(tensor.dtype);
  hasher.dims(tensor.shape);
  hasher.number(tensor.file);
  hasher.number(tensor.offset_bytes);
  hasher.number(tensor.size_bytes());
  hasher.choice(tensor.label);
  hasher.number(tensor.replicated);
  hasher.number(tensor.tied);
  hasher.number(tensor.expert_parallel);
  hasher.number(tensor.is_object);
  hasher.number(tensor.in_file ? 1 : 0);
}

void add(Hasher& hasher, const LogicalTensor& tensor) {
  hasher.text(tensor.name);
  hasher.choice(tensor.dtype);
  hasher.dims(tensor.shape);
  hasher.number(tensor.computed ? 1 : 0);
  if (!tensor.computed) return;
  hasher.text(tensor.computed->recipe->key());
  hasher.list(tensor.computed->inputs, [&](const std::string& input) { hasher.text(input); });
}

/// \param path       The path to hash for the file.
/// \param as_target  The file, if it belongs to a target; otherwise an empty TargetFile.
void add_file(Hasher& hasher, const MapFile& file, const std::filesystem::path& path, const TargetFile& as_target,
              const std::optional<ZstdFrame>& frame) {
  hasher.path(path);
  hasher.number(file.size_bytes);
  hasher.number(file.tp_rank);
  hasher.number(file.pp_rank);
  hasher.number(file.ep_rank);
  hasher.number(as_target.first_stored);
  hasher.number(as_target.stored_count);
  hasher.choice(as_target.encoding);
  hasher.number(frame ? frame->offset_bytes : 0);
  hasher.number(frame ? frame->length_bytes : 0);
  hasher.list(as_target.aliases, [&](const TensorAlias& alias) {
    hasher.text(alias.name);
    hasher.text(alias.source);
  });
  hasher.list(as_target.objects, [&](const std::string& object) { hasher.text(object); });
  hasher.number(as_target.structure ? 1 : 0);
  if (as_target.structure) {
    Pickler pickler;
    put_saved_value(pickler, *as_target.structure, [&](std::uint32_t tensor) { hasher.number(tensor); });
    hasher.text(pickler.finish());
  }
  hasher.list(file.record ? record_metadata(*file.record) : FileMetadata(), [&](const auto& entry) {
    hasher.text(entry.first);
    hasher.text(entry.second);
  });
}

void add(Hasher& hasher, const std::vector<SourceFile>& files) {
  hasher.list(files, [&](const SourceFile& file) { add_file(hasher, file, file.path.filename(), {}, file.frame); });
}

void add(Hasher& hasher, const std::vector<TargetFile>& files) {
  hasher.list(files, [&](const TargetFile& file) { add_file(hasher, file, file.path, file, {}); });
}

/// Hashes a map except its files.
void add_tensors(Hasher& hasher, const TensorMap& map) {
  add(hasher, map.stored);
  add(hasher, map.logical);
  add(hasher, map.pieces);
  std::vector<const StoredTensor::InFile*> others;
  for (const StoredTensor& tensor : map.stored)
    if (tensor.in_file) others.push_back(tensor.in_file.get());
  hasher.list(others, [&](const StoredTensor::InFile* in_file) {
    hasher.dims(in_file->shape);
    hasher.dims(in_file->strides);
  });
}

void add(Hasher& hasher, const Reading& reading) {
  hasher.number(reading.logical);
  add(hasher, reading.reads);
  add(hasher, reading.checks);
}

void add(Hasher& hasher, const std::optional<Reading>& reading) {
  hasher.number(reading ? 1 : 0);
  if (reading) add(hasher, *reading);
}

void add_inputs(Hasher& hasher, const std::vector<Reading>& inputs) {
  hasher.list(inputs, [&](const Reading& input) {
    add(hasher, input);
    add_inputs(hasher, input.inputs);
  });
}

void add(Hasher& hasher, const Transfer& transfer) {
  add(hasher, transfer.source);
  add_inputs(hasher, transfer.source ? transfer.source->inputs : std::vector<Reading>());
  add(hasher, transfer.against);
  hasher.maybe(transfer.target);
  add(hasher, transfer.regrouped_writes);
}

}  // namespace

std::string to_string(const Fingerprint& fingerprint) {
  return fmt::format("{:016x}{:016x}", fingerprint.high, fingerprint.low);
}

Fingerprint fingerprint_of(const SourceMap& source) {
  Hasher hasher;
  hasher.text(RESHARD_VERSION);
  add(hasher, source.files);
  add_tensors(hasher, source);
  return hasher.result();
}

Fingerprint fingerprint_of(const Job& job, std::span<const std::uint64_t> options) {
  Hasher hasher;
  hasher.text(RESHARD_VERSION);
  hasher.list(options, [&](std::uint64_t option) { hasher.number(option); });
  add(hasher, job.source.files);
  add(hasher, job.target.files);
  add_tensors(hasher, job.source);
  add_tensors(hasher, job.target);
  add(hasher, job.program.transfers);
  hasher.list(job.text_files, [&](const TextFile& file) {
    hasher.path(file.path);
    hasher.text(file.text);
  });
  hasher.list(job.copied_files, [&](const CopiedFile& file) {
    hasher.path(file.path);
    hasher.number(file.size_bytes);
  });
  hasher.list(job.whole_folders, [&](const std::filesystem::path& folder) { hasher.path(folder); });
  return hasher.result();
}

}  // namespace reshard
