#include "reshard/plan/job/interleave.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

namespace reshard {
namespace {

/// The range of a stored tensor, in elements of the file, that contains a piece.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t run = 0;  // elements of the piece that follow each other in the file
};

Span span_of(const StoredTensor& stored, const Piece& piece) {
  const Dims strides = stored.strides();
  Span span{0, 1, 1};
  for (std::size_t d = 0; d < strides.size(); ++d) {
    span.begin += piece.stored_begin[d] * strides[d];
    span.end += (piece.box.size[d] - 1) * strides[d];
  }
  span.end += span.begin;
  const Dims order = dims_by_stride(strides);
  for (std::size_t i = order.size(); i-- > 0;) {
    span.run *= piece.box.size[order[i]];
    if (piece.box.size[order[i]] != stored.shape[order[i]]) break;
  }
  return span;
}

/// The first piece of a transfer, if it is written in short runs with bytes of other tensors between them.
std::optional<Span> interleaving_span(const ProgramMaps& maps, const Transfer& transfer) {
  constexpr std::uint64_t kShortRunBytes = 4096;
  // Units are not divided between tensors that interleave, so these are small.
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  const auto pieces = transfer.writes(maps);
  if (pieces.empty() || volume(pieces.front().box) == 0) return std::nullopt;
  const StoredTensor& stored = maps.target->stored[pieces.front().stored];
  const Span span = span_of(stored, pieces.front());
  if (span.end - span.begin == volume(pieces.front().box) || span.run * bits(stored.dtype) / 8 >= kShortRunBytes ||
      written_bytes(maps, transfer) > kMostBytes)
    return std::nullopt;
  return span;
}

}  // namespace

std::uint64_t written_bytes(const ProgramMaps& maps, const Transfer& transfer) {
  std::uint64_t elems = 0;
  for (const Piece& piece : transfer.writes(maps)) elems += volume(piece.box);
  return elems * bits(transfer.result(maps)->dtype) / 8;
}

std::uint64_t whole_rows(const ProgramMaps& maps, const Transfer& transfer) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  const auto pieces = transfer.writes(maps);
  if (pieces.empty()) return 0;
  const StoredTensor& stored = maps.target->stored[pieces.front().stored];
  const Dims& size = pieces.front().box.size;
  const LogicalTensor &read = transfer.tensor(maps), &written = *transfer.result(maps);
  const bool is_rows = !size.empty() && std::equal(size.begin() + 1, size.end(), written.shape.begin() + 1);
  if (!is_rows || stored.is_c_order() || bits(read.dtype) % 8 != 0 || bits(written.dtype) % 8 != 0) return 0;
  const std::uint64_t elems = volume(pieces.front().box);
  if (elems == 0 || elems * std::max(bits(read.dtype), bits(written.dtype)) / 8 > kMostBytes) return 0;
  const Span span = span_of(stored, pieces.front());
  return span.end - span.begin == elems || interleaving_span(maps, transfer) ? size[0] : 0;
}

bool interleave(const ProgramMaps& maps, const Transfer& a, const Transfer& b) {
  const auto span_of_a = interleaving_span(maps, a), span_of_b = interleaving_span(maps, b);
  return span_of_a && span_of_b && a.writes(maps).front().stored == b.writes(maps).front().stored &&
         span_of_a->begin < span_of_b->end && span_of_b->begin < span_of_a->end;
}

void join_interleaving(std::vector<Transfer>& transfers, const ProgramMaps& maps) {
  struct Place {
    std::uint32_t stored = 0;
    Span span;
    std::size_t transfer = 0;
  };
  std::vector<Place> places;
  for (std::size_t t = 0; t < transfers.size(); ++t)
    if (const auto span = interleaving_span(maps, transfers[t]))
      places.push_back({transfers[t].writes(maps).front().stored, *span, t});
  if (places.empty()) return;
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.stored, a.span.begin) < std::tie(b.stored, b.span.begin);
  });
  std::vector<std::size_t> first(transfers.size());  // for each, the first transfer that interleaves with it
  std::iota(first.begin(), first.end(), std::size_t{0});
  for (std::size_t i = 0, end = 0; i < places.size(); i = end) {
    std::uint64_t reach = places[i].span.end;
    std::size_t least = places[i].transfer;
    for (end = i + 1; end < places.size() && places[end].stored == places[i].stored && places[end].span.begin < reach;
         ++end) {
      reach = std::max(reach, places[end].span.end);
      least = std::min(least, places[end].transfer);
    }
    for (std::size_t j = i; j < end; ++j) first[places[j].transfer] = least;
  }
  std::vector<std::size_t> order(transfers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return first[a] < first[b]; });
  std::vector<Transfer> ordered;
  ordered.reserve(transfers.size());
  for (const std::size_t t : order) ordered.push_back(std::move(transfers[t]));
  transfers = std::move(ordered);
}

}  // namespace reshard
