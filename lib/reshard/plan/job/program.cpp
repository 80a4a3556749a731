#include "reshard/plan/job/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

/// Of a Piece or a Check.
template <typename Part>
std::uint64_t bytes_of(const Part& piece, DType dtype) {
  return volume(piece.box) * bits(dtype) / 8;
}

/// The part of `piece` that is `box`, which lies inside it.
Piece restrict(const Piece& piece, const Box& box) {
  Piece part{piece.stored, box, piece.stored_begin};
  for (std::size_t d = 0; d < box.begin.size(); ++d) part.stored_begin[d] += box.begin[d] - piece.box.begin[d];
  return part;
}

/// Takes the elements of `hole` out of boxes that do not overlap.
void take_out(std::vector<Box>& boxes, const Box& hole) {
  if (boxes.size() == 1 && boxes.front() == hole) return boxes.clear();  // a piece that is all
  std::vector<Box> rest;
  for (const Box& box : boxes) subtract(box, hole, rest);
  boxes.swap(rest);
}

/// Takes from `open` what `piece` has. \returns what it has besides, which other pieces have filled already.
std::vector<Box> take(const Piece& piece, std::vector<Box>& open, std::vector<Piece>& reads) {
  std::vector<Box> besides{piece.box};
  for (const Box& box : open) {
    const auto shared = intersect(box, piece.box);
    if (!shared) continue;
    reads.push_back(restrict(piece, *shared));
    take_out(besides, *shared);
  }
  take_out(open, piece.box);
  return besides;
}

/// Whether two tensors of a map are the same bytes of the same files.
bool is_same_place(const SourceMap& map, const Reading& a, const Reading& b) {
  return std::equal(a.reads.begin(), a.reads.end(), b.reads.begin(), b.reads.end(),
                    [&](const Piece& x, const Piece& y) {
                      const StoredTensor &in_x = map.stored[x.stored], &in_y = map.stored[y.stored];
                      return in_x.file == in_y.file && in_x.offset_bytes == in_y.offset_bytes &&
                             in_x.view() == in_y.view() && x.box == y.box && x.stored_begin == y.stored_begin;
                    });
}

bool stored_before(const Piece& a, const Piece& b) {
  return a.stored < b.stored;
}

void sort_by_stored(std::vector<Piece>& pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), stored_before);
}

/// Fills the tensor from its pieces, each element from the first piece that has it and goes by the tensor's own name;
/// all that other pieces hold of it is compared.
Reading read_logical(const SourceMap& map, std::uint32_t index) {
  const LogicalTensor& tensor = map.logical[index];
  Reading reading;
  reading.logical = index;
  std::vector<Piece> checks;
  std::vector<Box> open{whole(tensor.shape)};  // what no piece has filled yet
  if (tensor.filler || volume(open.front()) == 0) open.clear();
  for (const Piece& piece : map.pieces[index]) {
    if (map.stored[piece.stored].tied || open.empty()) {
      checks.push_back(piece);
      continue;
    }
    for (const Box& box : take(piece, open, reading.reads)) checks.push_back(restrict(piece, box));
  }
  if (!open.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("no file holds its part {} of {}", to_string(open.front()), to_string(tensor.shape)))
        .tensor(tensor.name)
        .hint("a rank's file is missing or belongs to another checkpoint");
  sort_by_stored(reading.reads);
  sort_by_stored(checks);
  reading.checks.reserve(checks.size());
  for (const Piece& piece : checks) reading.checks.push_back(make_check(map, index, reading.reads, piece));
  return reading;
}

/// Most pieces are in order as they are, and there may be millions: only others are copied.
void regroup_writes(Transfer& transfer, const std::vector<Piece>& pieces) {
  if (std::is_sorted(pieces.begin(), pieces.end(), stored_before)) return;
  transfer.regrouped_writes = pieces;
  sort_by_stored(transfer.regrouped_writes);
}

template <typename Parts>
std::uint64_t bytes_of_all(const Parts& pieces, DType dtype) {
  std::uint64_t bytes = 0;
  for (const auto& piece : pieces) bytes += bytes_of(piece, dtype);
  return bytes;
}

void count(Program& program, const Reading& reading, DType dtype) {
  program.read_bytes += bytes_of_all(reading.reads, dtype);
  program.check_bytes += bytes_of_all(reading.checks, dtype);
}

void count(Program& program, const ProgramMaps& maps, const Transfer& transfer) {
  const DType dtype = transfer.tensor(maps).dtype;
  if (transfer.source) count(program, *transfer.source, dtype);
  for (const Reading& reading : transfer.more) count(program, reading, dtype);
  if (transfer.target)
    program.write_bytes += bytes_of_all(transfer.writes(maps), maps.target->logical[*transfer.target].dtype);
}

/// Whether nothing but equal replicas shows that the tensor is what it was taken for.
bool needs_replicas(const SourceMap& source, std::uint32_t logical) {
  return !source.inferred_partition_hint.empty() || !source.unconfirmed_hint(source.logical[logical]).empty();
}

/// Takes replicas out of the reading, but for tied parameters.
void skip_replicas(Program& program, Reading& reading, DType dtype) {
  std::erase_if(reading.checks, [&](const Check& check) {
    if (check.reason == CheckReason::kTied) return false;
    program.skipped_bytes += bytes_of(check, dtype);
    return true;
  });
}

void validate_fits(const LogicalTensor& source, const LogicalTensor& target) {
  if (source.shape != target.shape)
    throw Error(ErrorKind::kBadInput, fmt::format("is {} {} in the source, but {} {} in the target", name(source.dtype),
                                                  to_string(source.shape), name(target.dtype), to_string(target.shape)))
        .tensor(source.name);
  if (source.dtype != target.dtype && !can_cast(source.dtype, target.dtype, Integers::kAllow))
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is {}, which cannot be cast to {}", name(source.dtype), name(target.dtype)))
        .tensor(source.name);
}

/// Makes the program that moves one map into another.
class ProgramMaker {
 public:
  ProgramMaker(const SourceMap& source, const TargetMap& target, const ProgramOptions& options)
      : source_(source), target_(target), options_(options), dropped_(options.dropped.begin(), options.dropped.end()) {
    for (const Mean& mean : options.means)
      for (const std::string& name : mean.sources) in_mean_.insert(name);
  }

  Program make() {
    for (std::uint32_t i = 0; i < source_.logical.size(); ++i) add(i);
    for (const Mean& mean : options_.means) add(mean);
    for (std::uint32_t i = 0; i < target_.logical.size(); ++i) add_target_only(i);
    return std::move(program_);
  }

 private:
  Reading read(std::uint32_t index) {
    Reading reading = read_logical(source_, index);
    if (!options_.check_replicas && !needs_replicas(source_, index))
      skip_replicas(program_, reading, source_.logical[index].dtype);
    return reading;
  }

  void add(std::uint32_t index) {
    const LogicalTensor& tensor = source_.logical[index];
    if (dropped_.count(tensor.name)) {
      for (const Piece& piece : source_.pieces[index]) program_.dropped_bytes += bytes_of(piece, tensor.dtype);
      return;
    }
    if (in_mean_.count(tensor.name)) return;
    Transfer transfer;
    transfer.source = read(index);
    const auto wanted = target_.find_logical(tensor.name);
    if (!tensor.filler) {
      if (wanted && target_.pieces[*wanted].empty() && options_.partial_target) return;  // of ranks left out alone
      if (!wanted || target_.pieces[*wanted].empty())
        throw Error(ErrorKind::kBadInput, "the source holds it, but the target has no place for it")
            .tensor(tensor.name);
      write(transfer, *wanted);
    }
    push(std::move(transfer));
  }

  void add(const Mean& mean) {
    const auto wanted = target_.find_logical(mean.target);
    if (!wanted) throw Error(ErrorKind::kInternal, "a mean of no use").tensor(mean.target);
    std::optional<Transfer> transfer;
    for (const std::string& source_name : mean.sources) {
      const auto index = source_.find_logical(source_name);
      if (!index) throw Error(ErrorKind::kInternal, "a mean of a tensor that is not there").tensor(source_name);
      const LogicalTensor& tensor = source_.logical[*index];
      if (transfer) {
        validate_same_form(tensor, transfer->tensor(maps_));
        Reading reading = read(*index);
        if (!is_same_place(source_, *transfer->source, reading)) transfer->more.push_back(std::move(reading));
      } else {
        transfer.emplace().source = read(*index);
      }
    }
    made_.insert(mean.target);
    write(*transfer, *wanted);
    push(std::move(*transfer));
  }

  /// A mean is of tensors of one dtype and shape.
  static void validate_same_form(const LogicalTensor& tensor, const LogicalTensor& first) {
    if (tensor.dtype == first.dtype && tensor.shape == first.shape) return;
    throw Error(ErrorKind::kBadInput,
                fmt::format("is {} {}, but {} is {} {}: their mean cannot be taken", name(tensor.dtype),
                            to_string(tensor.shape), first.name, name(first.dtype), to_string(first.shape)))
        .tensor(tensor.name);
  }

  /// Padding is made; anything else must have come from the source.
  void add_target_only(std::uint32_t index) {
    const LogicalTensor& tensor = target_.logical[index];
    if (!tensor.filler) {
      if (!source_.find_logical(tensor.name) && !made_.count(tensor.name))
        throw Error(ErrorKind::kBadInput, "the target needs it, but the source does not hold it").tensor(tensor.name);
      return;
    }
    Transfer transfer;
    write(transfer, index);
    push(std::move(transfer));
  }

  void write(Transfer& transfer, std::uint32_t wanted) {
    const LogicalTensor& target = target_.logical[wanted];
    if (transfer.source) validate_fits(transfer.tensor(maps_), target);
    if (!target.filler && !options_.partial_target) validate_covered(wanted);
    transfer.target = wanted;
    regroup_writes(transfer, target_.pieces[wanted]);
  }

  /// No part of the tensor is without a place.
  void validate_covered(std::uint32_t wanted) const {
    const LogicalTensor& tensor = target_.logical[wanted];
    std::vector<Box> open{whole(tensor.shape)};
    if (volume(open.front()) == 0) return;
    for (const Piece& piece : target_.pieces[wanted]) {
      if (open.empty()) return;
      take_out(open, piece.box);
    }
    if (!open.empty())
      throw Error(ErrorKind::kInternal, fmt::format("the target has no place for its part {} of {}",
                                                    to_string(open.front()), to_string(tensor.shape)))
          .tensor(tensor.name);
  }

  void push(Transfer transfer) {
    count(program_, maps_, transfer);
    if (options_.partial_target && transfer.source && !transfer.writes(maps_).empty()) leave_uncounted(transfer);
    program_.transfers.push_back(std::move(transfer));
  }

  /// Rows before the first that is written, and after the last, are not read.
  void leave_uncounted(const Transfer& transfer) {
    const LogicalTensor& tensor = transfer.tensor(maps_);
    if (tensor.shape.empty()) return;
    std::uint64_t begin = UINT64_MAX, end = 0;
    for (const Piece& piece : transfer.writes(maps_)) {
      begin = std::min(begin, piece.box.begin[0]);
      end = std::max(end, piece.box.begin[0] + piece.box.size[0]);
    }
    const auto leave_out = [&](const auto& pieces, std::uint64_t& counted) {
      for (const auto& piece : pieces) {
        Box box = piece.box;
        const std::uint64_t first = std::max(begin, box.begin[0]);
        const std::uint64_t last = std::min(end, box.begin[0] + box.size[0]);
        counted -= bytes_of(piece, tensor.dtype);
        box.size[0] = last > first ? last - first : 0;
        counted += volume(box) * bits(tensor.dtype) / 8;
      }
    };
    leave_out(transfer.source->reads, program_.read_bytes);
    leave_out(transfer.source->checks, program_.check_bytes);
  }

  const SourceMap& source_;
  const TargetMap& target_;
  const ProgramMaps maps_{&source_, &target_};
  const ProgramOptions& options_;
  std::unordered_set<std::string> dropped_;
  std::unordered_set<std::string> in_mean_;
  std::unordered_set<std::string> made_;
  Program program_;
};

}  // namespace

const LogicalTensor& Transfer::tensor(const ProgramMaps& maps) const {
  if (source) return maps.source->logical[source->logical];
  return *result(maps);
}

const LogicalTensor* Transfer::result(const ProgramMaps& maps) const {
  if (target) return &maps.target->logical[*target];
  return against ? &maps.against->logical[against->logical] : nullptr;
}

std::span<const Piece> Transfer::writes(const ProgramMaps& maps) const {
  if (!target) return {};
  return regrouped_writes.empty() ? std::span(maps.target->pieces[*target]) : std::span(regrouped_writes);
}

Dims Transfer::order(const ProgramMaps& maps) const {
  const auto pieces = writes(maps);
  if (pieces.empty()) return {};
  const StoredTensor& stored = maps.target->stored[pieces.front().stored];
  return stored.is_c_order() ? Dims() : dims_by_stride(stored.strides());
}

std::uint64_t Transfer::moved_bytes(const ProgramMaps& maps) const {
  Program counted;
  if (against) count(counted, *against, result(maps)->dtype);
  count(counted, maps, *this);
  return counted.read_bytes + counted.check_bytes + counted.write_bytes;
}

Program make_program(const SourceMap& source, const TargetMap& target, const ProgramOptions& options) {
  validate_tiling(source);
  validate_tiling(target);
  return ProgramMaker(source, target, options).make();
}

Program make_reading_program(const SourceMap& source, bool check_replicas) {
  validate_tiling(source);
  const ProgramMaps maps{&source};
  Program program;
  for (std::uint32_t i = 0; i < source.logical.size(); ++i) {
    Transfer transfer;
    transfer.source = read_logical(source, i);
    if (!check_replicas && !needs_replicas(source, i)) transfer.source->checks.clear();
    count(program, maps, transfer);
    program.transfers.push_back(std::move(transfer));
  }
  return program;
}

Program make_comparing_program(const SourceMap& a, const SourceMap& b) {
  validate_tiling(a);
  validate_tiling(b);
  Program program;
  for (std::uint32_t i = 0; i < a.logical.size(); ++i) {
    const LogicalTensor& tensor = a.logical[i];
    if (tensor.filler) {
      Transfer transfer;
      transfer.source = read_logical(a, i);
      count(program, *transfer.source, tensor.dtype);
      program.transfers.push_back(std::move(transfer));
      continue;
    }
    const auto other = b.find_logical(tensor.name);
    if (!other || b.logical[*other].shape != tensor.shape) continue;
    Transfer transfer;
    transfer.source = read_logical(a, i);
    transfer.against = read_logical(b, *other);
    count(program, *transfer.source, tensor.dtype);
    count(program, *transfer.against, b.logical[*other].dtype);
    program.transfers.push_back(std::move(transfer));
  }
  for (std::uint32_t i = 0; i < b.logical.size(); ++i) {
    if (!b.logical[i].filler) continue;
    Transfer transfer;
    transfer.against = read_logical(b, i);
    count(program, *transfer.against, b.logical[i].dtype);
    program.transfers.push_back(std::move(transfer));
  }
  return program;
}

}  // namespace reshard
