#include "reshard/plan/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

std::uint64_t bytes_of(const Piece& piece, DType dtype) {
  return volume(piece.box) * bits(dtype) / 8;
}

/// The part of `piece` that is `box`, which lies inside it.
Piece restrict(const Piece& piece, const Box& box) {
  Piece part{piece.stored, box, piece.stored_begin};
  for (std::size_t d = 0; d < box.begin.size(); ++d) part.stored_begin[d] += box.begin[d] - piece.box.begin[d];
  return part;
}

/// Takes from `open` what `piece` has. \returns what it has besides, which other pieces have filled already.
std::vector<Box> take(const Piece& piece, std::vector<Box>& open, std::vector<Piece>& reads) {
  std::vector<Box> still_open;
  std::vector<Box> besides{piece.box};
  for (const Box& box : open) {
    const auto shared = intersect(box, piece.box);
    if (!shared) {
      still_open.push_back(box);
      continue;
    }
    reads.push_back(restrict(piece, *shared));
    for (Box& rest : subtract(box, *shared)) still_open.push_back(std::move(rest));
    std::vector<Box> less;
    for (const Box& rest : besides)
      for (Box& part : subtract(rest, *shared)) less.push_back(std::move(part));
    besides = std::move(less);
  }
  open = std::move(still_open);
  return besides;
}

/// Fills the tensor from its pieces, each element from the first piece that has it and goes by the tensor's own name;
/// all that other pieces hold of it is compared.
Transfer read_logical(const Layout& source, std::uint32_t index) {
  const LogicalTensor& tensor = source.logical[index];
  Transfer transfer;
  transfer.source_logical = index;
  std::vector<Box> open{whole(tensor.shape)};  // what no piece has filled yet
  if (volume(open.front()) == 0) open.clear();
  for (const Piece& piece : source.pieces[index]) {
    if (source.stored[piece.stored].kind == CutKind::kTied || open.empty()) {
      transfer.checks.push_back(piece);
      continue;
    }
    for (const Box& box : take(piece, open, transfer.reads)) transfer.checks.push_back(restrict(piece, box));
  }
  if (!open.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("no file holds its part {} of {}", to_string(open.front()), to_string(tensor.shape)))
        .tensor(tensor.name)
        .hint("a rank's file is missing or belongs to another checkpoint");
  return transfer;
}

bool stored_before(const Piece& a, const Piece& b) {
  return a.stored < b.stored;
}

void sort_by_stored(std::vector<Piece>& pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), stored_before);
}

/// Most pieces are in order as they are, and there may be millions: only others are copied.
void view_writes(Transfer& transfer, const std::vector<Piece>& pieces) {
  transfer.writes = pieces;
  if (std::is_sorted(pieces.begin(), pieces.end(), stored_before)) return;
  transfer.own_writes = pieces;
  sort_by_stored(transfer.own_writes);
  transfer.writes = transfer.own_writes;
}

void count(Program& program, const Transfer& transfer) {
  const DType dtype = program.source->logical[transfer.source_logical].dtype;
  for (const Piece& piece : transfer.reads) program.read_bytes += bytes_of(piece, dtype);
  for (const Piece& piece : transfer.checks) program.check_bytes += bytes_of(piece, dtype);
  for (const Piece& piece : transfer.writes) program.write_bytes += bytes_of(piece, dtype);
}

void prove_same(const LogicalTensor& source, const LogicalTensor& target) {
  if (source.dtype == target.dtype && source.shape == target.shape) return;
  throw Error(ErrorKind::kBadInput, fmt::format("is {} {} in the source, but {} {} in the target", name(source.dtype),
                                                to_string(source.shape), name(target.dtype), to_string(target.shape)))
      .tensor(source.name);
}

}  // namespace

Program make_reading_program(const Layout& source) {
  prove_tiling(source);
  Program program;
  program.source = &source;
  for (std::uint32_t i = 0; i < source.logical.size(); ++i) {
    Transfer transfer = read_logical(source, i);
    transfer.checks.clear();
    sort_by_stored(transfer.reads);
    count(program, transfer);
    program.transfers.push_back(std::move(transfer));
  }
  return program;
}

Program make_program(const Layout& source, const Layout& target) {
  prove_tiling(source);
  prove_tiling(target);
  for (const LogicalTensor& tensor : target.logical)
    if (!source.find_logical(tensor.name))
      throw Error(ErrorKind::kBadInput, "the target needs it, but the source does not hold it").tensor(tensor.name);
  Program program;
  program.source = &source;
  program.target = &target;
  for (std::uint32_t i = 0; i < source.logical.size(); ++i) {
    const LogicalTensor& tensor = source.logical[i];
    const auto wanted = target.find_logical(tensor.name);
    if (!wanted || target.pieces[*wanted].empty())
      throw Error(ErrorKind::kBadInput, "the source holds it, but the target has no place for it").tensor(tensor.name);
    prove_same(tensor, target.logical[*wanted]);
    Transfer transfer = read_logical(source, i);
    view_writes(transfer, target.pieces[*wanted]);
    sort_by_stored(transfer.reads);
    sort_by_stored(transfer.checks);
    count(program, transfer);
    program.transfers.push_back(std::move(transfer));
  }
  return program;
}

}  // namespace reshard
