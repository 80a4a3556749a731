#include "reshard/engine/units/share_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"

namespace reshard {
namespace {

std::string_view bytes_of(const Sha256Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// Indices in ascending order, of which there are fewer than `all`.
template <typename Index>
std::vector<Index> read_indices(WireReader& wire, std::uint64_t all) {
  std::vector<Index> indices(wire.count());
  for (Index& index : indices) {
    const std::uint64_t number = wire.number();
    if (number >= all) throw Error(ErrorKind::kBadInput, "is of another program");
    index = static_cast<Index>(number);
  }
  return indices;
}

}  // namespace

void write_divergence(WireWriter& wire, const Divergence& divergence) {
  wire.add(divergence.tensor);
  wire.add(divergence.text);
  wire.add(divergence.is_drift);
  wire.add(divergence.max_abs);
  wire.add(divergence.relative);
  wire.add(divergence.stored);
  wire.add(divergence.logical);
}

Divergence read_divergence(WireReader& wire) {
  Divergence divergence;
  divergence.tensor = wire.text();
  divergence.text = wire.text();
  divergence.is_drift = wire.number() != 0;
  divergence.max_abs = wire.real();
  divergence.relative = wire.real();
  divergence.stored = static_cast<std::uint32_t>(wire.number());
  divergence.logical = static_cast<std::uint32_t>(wire.number());
  return divergence;
}

void merge(ShareReport& into, ShareReport one) {
  if (into.crcs.empty()) into.crcs.resize(one.crcs.size());
  if (into.crcs.size() != one.crcs.size())
    throw Error(ErrorKind::kInternal,
                fmt::format("a share reports {} checksums and another one {}, so they are not of one program",
                            one.crcs.size(), into.crcs.size()));
  for (std::size_t i = 0; i < one.crcs.size(); ++i) into.crcs[i] ^= one.crcs[i];
  into.written_bytes += one.written_bytes;
  into.hashing_seconds += one.hashing_seconds;
  if (into.digests.empty())
    into.digests = std::move(one.digests);
  else
    for (std::size_t i = 0; i < one.digests.size(); ++i) into.digests.at(i).merge(one.digests[i]);
  const auto unite = []<typename Index>(std::vector<Index>& all, const std::vector<Index>& more) {
    std::vector<Index> united;
    std::set_union(all.begin(), all.end(), more.begin(), more.end(), std::back_inserter(united));
    all = std::move(united);
  };
  unite(into.written_files, one.written_files);
  unite(into.inexact, one.inexact);
  std::move(one.fragment_files.begin(), one.fragment_files.end(), std::back_inserter(into.fragment_files));
  std::move(one.divergent.begin(), one.divergent.end(), std::back_inserter(into.divergent));
  // Of a replica that several shares found, the same one is kept whichever was merged first.
  const auto replica = [](const Divergence& divergence) { return std::pair(divergence.logical, divergence.stored); };
  std::sort(into.divergent.begin(), into.divergent.end(), [&](const Divergence& a, const Divergence& b) {
    return std::pair(replica(a), std::string_view(a.text)) < std::pair(replica(b), std::string_view(b.text));
  });
  const auto last = std::unique(into.divergent.begin(), into.divergent.end(),
                                [&](const Divergence& a, const Divergence& b) { return replica(a) == replica(b); });
  into.divergent.erase(last, into.divergent.end());
}

void write_report(WireWriter& wire, const ShareReport& report) {
  wire.add(report.written_bytes);
  wire.add(report.hashing_seconds);
  wire.add(report.crcs.size());
  wire.add(report.crcs.size() - static_cast<std::size_t>(std::count(report.crcs.begin(), report.crcs.end(), 0u)));
  for (std::size_t i = 0; i < report.crcs.size(); ++i) {
    if (report.crcs[i] == 0) continue;
    wire.add(i);
    wire.add(report.crcs[i]);
  }
  wire.add(report.written_files.size());
  for (const std::uint32_t file : report.written_files) wire.add(file);
  wire.add(report.inexact.size());
  for (const std::size_t transfer : report.inexact) wire.add(transfer);
  wire.add(report.fragment_files.size());
  for (const std::string& file : report.fragment_files) wire.add(file);
  wire.add(report.divergent.size());
  for (const Divergence& divergence : report.divergent) write_divergence(wire, divergence);
  std::uint64_t leaves = 0;
  for (const LeafDigests& tensor : report.digests) tensor.for_each([&](std::size_t, const Sha256Digest&) { ++leaves; });
  wire.add(report.digests.size());
  wire.add(leaves);
  for (std::size_t t = 0; t < report.digests.size(); ++t)
    report.digests[t].for_each([&](std::size_t leaf, const Sha256Digest& digest) {
      wire.add(t);
      wire.add(leaf);
      wire.add_raw(bytes_of(digest));
    });
}

ShareReport read_report(WireReader& wire, const TargetMap& target) {
  constexpr std::uint64_t kCrcBytes = 16;
  constexpr std::uint64_t kLeafEntryBytes = 16 + sizeof(Sha256Digest);
  const auto validate = [](bool holds) {
    if (!holds) throw Error(ErrorKind::kBadInput, "is of another program");
  };
  ShareReport report;
  report.written_bytes = wire.number();
  report.hashing_seconds = wire.real();
  const std::uint64_t stored = wire.number();
  validate(stored == 0 || stored == target.stored.size());
  report.crcs.resize(stored);
  for (std::uint64_t i = wire.count(kCrcBytes); i > 0; --i) {
    const std::uint64_t tensor = wire.number();
    validate(tensor < stored);
    report.crcs[tensor] = static_cast<std::uint32_t>(wire.number());
  }
  report.written_files = read_indices<std::uint32_t>(wire, target.files.size());
  report.inexact = read_indices<std::size_t>(wire, SIZE_MAX);
  for (std::uint64_t i = wire.count(); i > 0; --i) report.fragment_files.emplace_back(wire.text());
  const std::uint64_t divergent = wire.count(kDivergenceBytes);
  for (std::uint64_t i = 0; i < divergent; ++i) report.divergent.push_back(read_divergence(wire));
  const std::uint64_t tensors = wire.number();
  validate(tensors == 0 || tensors == target.logical.size());
  report.digests.reserve(tensors);
  for (std::uint64_t t = 0; t < tensors; ++t)
    report.digests.emplace_back(target.logical[t].dtype, target.logical[t].shape);
  for (std::uint64_t i = wire.count(kLeafEntryBytes); i > 0; --i) {
    const std::uint64_t tensor = wire.number();
    const std::uint64_t leaf = wire.number();
    Sha256Digest digest;
    std::memcpy(digest.data(), wire.raw(sizeof digest).data(), sizeof digest);
    validate(tensor < tensors && leaf < report.digests[tensor].leaves());
    report.digests[tensor].set(leaf, digest);
  }
  return report;
}

}  // namespace reshard
