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

/// Fills the tensor from its pieces, each element from the first piece that has it.
Transfer read_logical(const Layout& source, std::uint32_t index) {
  const LogicalTensor& tensor = source.logical[index];
  Transfer transfer;
  transfer.source_logical = index;
  std::vector<Box> open{whole(tensor.shape)};  // what no piece has filled yet
  if (volume(open.front()) == 0) open.clear();
  for (const Piece& piece : source.pieces[index]) {
    if (source.stored[piece.stored].kind == CutKind::kTied) {
      transfer.checks.push_back(piece);
      continue;
    }
    std::vector<Box> still_open;
    for (const Box& box : open) {
      const auto shared = intersect(box, piece.box);
      if (!shared) {
        still_open.push_back(box);
        continue;
      }
      transfer.reads.push_back(restrict(piece, *shared));
      for (Box& rest : subtract(box, *shared)) still_open.push_back(std::move(rest));
    }
    open = std::move(still_open);
  }
  if (!open.empty())
    throw Error(ErrorKind::kBadInput,
                fmt::format("no file holds its part {} of {}", to_string(open.front()), to_string(tensor.shape)))
        .tensor(tensor.name)
        .hint("a rank's file is missing or belongs to another checkpoint");
  return transfer;
}

void sort_by_stored(std::vector<Piece>& pieces) {
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.stored < b.stored; });
}

void count(Program& program, const Transfer& transfer) {
  const Layout& source = *program.source;
  const DType dtype = source.logical[transfer.source_logical].dtype;
  std::uint64_t held = 0;
  for (const Piece& piece : source.pieces[transfer.source_logical]) held += bytes_of(piece, dtype);
  std::uint64_t used = 0;
  for (const Piece& piece : transfer.reads) used += bytes_of(piece, dtype);
  std::uint64_t checked = 0;
  for (const Piece& piece : transfer.checks) checked += bytes_of(piece, dtype);
  program.read_bytes += used;
  program.check_bytes += checked;
  program.replica_bytes += held - used - checked;
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
    transfer.writes = target.pieces[*wanted];
    sort_by_stored(transfer.reads);
    sort_by_stored(transfer.checks);
    sort_by_stored(transfer.writes);
    count(program, transfer);
    program.transfers.push_back(std::move(transfer));
  }
  return program;
}

}  // namespace reshard
