#include "reshard/plan/job/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/error.h"
#include "reshard/plan/job/interleave.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

/// For a Piece or a Check.
template <typename Part>
std::uint64_t bytes_of(const Part& piece, DType dtype) {
  return volume(piece.box) * bits(dtype) / 8;
}

/// Returns the part of `piece` in `box`, which is inside it.
Piece restrict(const Piece& piece, const Box& box) {
  Piece part{piece.stored, box, piece.stored_begin};
  for (std::size_t d = 0; d < box.begin.size(); ++d) part.stored_begin[d] += box.begin[d] - piece.box.begin[d];
  return part;
}

/// Subtracts `hole` from boxes that do not overlap.
void take_out(std::vector<Box>& boxes, const Box& hole) {
  if (boxes.size() == 1 && boxes.front() == hole) return boxes.clear();  // the piece is the whole box
  std::vector<Box> rest;
  for (const Box& box : boxes) subtract(box, hole, rest);
  boxes.swap(rest);
}

/// Removes the boxes of `piece` from `open`. \returns the other boxes of the piece, which earlier pieces have filled.
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

bool stored_before(const Piece& a, const Piece& b) {
  return a.stored < b.stored;
}

void sort_by_stored(std::vector<Piece>& pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), stored_before);
}

Reading read_logical(const SourceMap& map, std::uint32_t index, unsigned depth = 0);

/// Returns how the inputs of a computed tensor are read.
/// \param depth  number of computed tensors between it and the one that needs it.
std::vector<Reading> read_inputs(const SourceMap& map, const LogicalTensor& tensor, unsigned depth) {
  constexpr unsigned kMaxDepth = 16;
  if (depth == kMaxDepth) throw Error(ErrorKind::kInternal, "is computed from itself").tensor(tensor.name);
  std::vector<Reading> inputs;
  std::vector<Operand> operands;
  std::filesystem::path path;  // file of the invalid input, or else of the last one
  const auto open_at = [&](const Reading& input) {
    if (!input.reads.empty()) path = map.file_of(map.stored[input.reads.front().stored]).path;
  };
  try {
    for (const std::string& input_name : tensor.computed->inputs) {
      const auto index = map.find_logical(input_name);
      if (!index)
        throw Error(ErrorKind::kBadInput, fmt::format("is computed from {}, which no file contains", input_name))
            .tensor(tensor.name)
            .hint("the files are incomplete, or the tensor has another name there");
      inputs.push_back(read_logical(map, *index, depth + 1));
      open_at(inputs.back());
      operands.push_back({map.logical[*index].name, map.logical[*index].dtype, map.logical[*index].shape});
    }
    tensor.computed->recipe->validate(operands, {tensor.name, tensor.dtype, tensor.shape});
  } catch (Error& error) {
    for (const Reading& input : inputs)
      if (map.logical[input.logical].name == error.tensor()) open_at(input);
    if (error.path().empty() && !path.empty()) error.in(path);
    throw;
  }
  return inputs;
}

/// Fills each element of the tensor from the first piece that contains it under the tensor's own name. The elements of
/// other pieces are compared.
Reading read_logical(const SourceMap& map, std::uint32_t index, unsigned depth) {
  const LogicalTensor& tensor = map.logical[index];
  Reading reading;
  reading.logical = index;
  std::vector<Piece> checks;
  std::vector<Box> open{whole(tensor.shape)};  // boxes that no piece has filled yet
  if (tensor.computed) reading.inputs = read_inputs(map, tensor, depth);
  if (tensor.computed || volume(open.front()) == 0) open.clear();
  for (const Piece& piece : map.pieces[index]) {
    if (map.stored[piece.stored].tied || open.empty()) {
      checks.push_back(piece);
      continue;
    }
    for (const Box& box : take(piece, open, reading.reads)) checks.push_back(restrict(piece, box));
  }
  if (!open.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("no file contains its piece {} of {}", to_string(open.front()), to_string(tensor.shape)))
        .tensor(tensor.name)
        .hint("a rank's file is missing or belongs to another checkpoint");
  sort_by_stored(reading.reads);
  sort_by_stored(checks);
  reading.checks.reserve(checks.size());
  for (const Piece& piece : checks) reading.checks.push_back(make_check(map, index, reading.reads, piece));
  return reading;
}

/// Copies only pieces that are not in order yet: most are, and there may be millions.
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

void count(Program& program, const SourceMap& map, const Reading& reading) {
  const DType dtype = map.logical[reading.logical].dtype;
  program.read_bytes += bytes_of_all(reading.reads, dtype);
  program.check_bytes += bytes_of_all(reading.checks, dtype);
  for (const Reading& input : reading.inputs) count(program, map, input);
}

void count(Program& program, const ProgramMaps& maps, const Transfer& transfer) {
  if (transfer.source) count(program, *maps.source, *transfer.source);
  if (transfer.against) count(program, *maps.against, *transfer.against);
  if (transfer.target)
    program.write_bytes += bytes_of_all(transfer.writes(maps), maps.target->logical[*transfer.target].dtype);
}

/// Whether equal replicas are the only evidence for how the tensor was interpreted.
bool needs_replicas(const SourceMap& source, std::uint32_t logical) {
  return !source.inferred_partition_hint.empty() || !source.logical[logical].unconfirmed_hint.empty();
}

/// Removes replicas from the reading, except tied parameters and replicas that are evidence.
void skip_replicas(Program& program, const SourceMap& source, Reading& reading) {
  for (Reading& input : reading.inputs) skip_replicas(program, source, input);
  if (needs_replicas(source, reading.logical)) return;
  const DType dtype = source.logical[reading.logical].dtype;
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

/// Creates the program that converts one map to another.
class ProgramMaker {
 public:
  ProgramMaker(const SourceMap& source, const TargetMap& target, const ProgramOptions& options)
      : source_(source), target_(target), options_(options), dropped_(options.dropped.begin(), options.dropped.end()) {
    for (const LogicalTensor& tensor : source.logical) {
      if (!tensor.computed) continue;
      inputs_.insert(tensor.computed->inputs.begin(), tensor.computed->inputs.end());
      inputs_.insert(tensor.computed->copies.begin(), tensor.computed->copies.end());
    }
  }

  Program make() {
    for (std::uint32_t i = 0; i < source_.logical.size(); ++i) add(i);
    for (std::uint32_t i = 0; i < target_.logical.size(); ++i) add_target_only(i);
    join_interleaving(program_.transfers, maps_);
    return std::move(program_);
  }

 private:
  Reading read(std::uint32_t index) {
    Reading reading = read_logical(source_, index);
    if (!options_.check_replicas) skip_replicas(program_, source_, reading);
    return reading;
  }

  void add(std::uint32_t index) {
    const LogicalTensor& tensor = source_.logical[index];
    if (dropped_.count(tensor.name)) {
      for (const Piece& piece : source_.pieces[index]) program_.dropped_bytes += bytes_of(piece, tensor.dtype);
      return;
    }
    const auto wanted = target_.find_logical(tensor.name);
    if (!wanted && (inputs_.count(tensor.name) || is_in_parts(tensor))) return;
    Transfer transfer;
    transfer.source = read(index);
    if (!tensor.constant()) {
      if (wanted && target_.pieces[*wanted].empty() && options_.partial_target) return;  // only on omitted ranks
      if (!wanted || target_.pieces[*wanted].empty())
        throw Error(ErrorKind::kBadInput, "is in the source, but the target has no place for it").tensor(tensor.name);
      write(transfer, *wanted);
    }
    push(std::move(transfer));
  }

  /// Whether the target has the tensors that this one is computed from in its place.
  bool is_in_parts(const LogicalTensor& tensor) const {
    return tensor.computed && !tensor.constant() &&
           std::all_of(tensor.computed->inputs.begin(), tensor.computed->inputs.end(),
                       [&](const std::string& input) { return target_.find_logical(input).has_value(); });
  }

  /// Padding is generated; everything else must come from the source.
  void add_target_only(std::uint32_t index) {
    const LogicalTensor& tensor = target_.logical[index];
    if (!tensor.constant()) {
      if (!source_.find_logical(tensor.name))
        throw Error(ErrorKind::kBadInput, "the target needs it, but the source does not contain it")
            .tensor(tensor.name);
      return;
    }
    Transfer transfer;
    write(transfer, index);
    push(std::move(transfer));
  }

  void write(Transfer& transfer, std::uint32_t wanted) {
    const LogicalTensor& target = target_.logical[wanted];
    if (transfer.source) validate_fits(transfer.tensor(maps_), target);
    if (!target.constant() && !options_.partial_target) validate_covered(wanted);
    transfer.target = wanted;
    regroup_writes(transfer, target_.pieces[wanted]);
  }

  /// Validates that every part of the tensor has a place.
  void validate_covered(std::uint32_t wanted) const {
    const LogicalTensor& tensor = target_.logical[wanted];
    std::vector<Box> open{whole(tensor.shape)};
    if (volume(open.front()) == 0) return;
    for (const Piece& piece : target_.pieces[wanted]) {
      if (open.empty()) return;
      take_out(open, piece.box);
    }
    if (!open.empty())
      throw Error(ErrorKind::kInternal, fmt::format("the target has no place for its piece {} of {}",
                                                    to_string(open.front()), to_string(tensor.shape)))
          .tensor(tensor.name);
  }

  void push(Transfer transfer) {
    count(program_, maps_, transfer);
    if (options_.partial_target && transfer.source && !transfer.writes(maps_).empty()) leave_uncounted(transfer);
    program_.transfers.push_back(std::move(transfer));
  }

  /// Rows before the first written row and after the last one are not read.
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
  std::unordered_set<std::string> inputs_;  // inputs of computed tensors, and their copies
  Program program_;
};

/// Whether the tensor's blocks may have any order.
bool is_elementwise(const SourceMap& map, const Reading& reading) {
  const auto& computed = map.logical[reading.logical].computed;
  return (!computed || computed->recipe->is_elementwise()) &&
         std::all_of(reading.inputs.begin(), reading.inputs.end(),
                     [&](const Reading& input) { return is_elementwise(map, input); });
}

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
  if (pieces.empty() || (source && !is_elementwise(*maps.source, *source))) return {};
  const StoredTensor& stored = maps.target->stored[pieces.front().stored];
  return stored.is_c_order() ? Dims() : dims_by_stride(stored.strides());
}

std::uint64_t Transfer::moved_bytes(const ProgramMaps& maps) const {
  Program counted;
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
    if (tensor.constant()) {
      Transfer transfer;
      transfer.source = read_logical(a, i);
      count(program, {&a, nullptr, &b}, transfer);
      program.transfers.push_back(std::move(transfer));
      continue;
    }
    const auto other = b.find_logical(tensor.name);
    if (!other || b.logical[*other].shape != tensor.shape) continue;
    Transfer transfer;
    transfer.source = read_logical(a, i);
    transfer.against = read_logical(b, *other);
    count(program, {&a, nullptr, &b}, transfer);
    program.transfers.push_back(std::move(transfer));
  }
  for (std::uint32_t i = 0; i < b.logical.size(); ++i) {
    if (!b.logical[i].constant()) continue;
    Transfer transfer;
    transfer.against = read_logical(b, i);
    count(program, {&a, nullptr, &b}, transfer);
    program.transfers.push_back(std::move(transfer));
  }
  return program;
}

}  // namespace reshard
