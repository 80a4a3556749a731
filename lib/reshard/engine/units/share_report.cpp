#include "reshard/engine/units/share_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/wire.h"

namespace reshard {
namespace {

/// A report without checksums that are zero and without unknown leaves.
struct Sparse {
  ShareReport report;
  std::uint64_t stored = 0;  // tensors in the target, or 0
  std::vector<std::pair<std::uint64_t, std::uint32_t>> crcs;
  std::uint64_t logical = 0;                                                   // likewise, logical ones
  std::vector<std::tuple<std::uint64_t, std::uint64_t, Sha256Digest>> leaves;  // tensor, leaf, digest

  static auto fields(auto& self) {
    auto& report = self.report;
    return std::tie(report.written_bytes, report.hashing_seconds, self.stored, self.crcs, report.written_files,
                    report.inexact, report.lost, report.fragment_files, report.divergent, self.logical, self.leaves);
  }
};

}  // namespace

void add_lost(std::vector<LostIn>& all, const std::vector<LostIn>& more) {
  std::map<std::size_t, Lost> sums;
  for (const std::vector<LostIn>* some : {&std::as_const(all), &more})
    for (const LostIn& one : *some) sums[one.transfer] += one.values;
  all.clear();
  for (const auto& [transfer, values] : sums) all.push_back({transfer, values});
}

void merge(ShareReport& into, ShareReport one) {
  if (into.crcs.empty()) into.crcs.resize(one.crcs.size());
  if (into.crcs.size() != one.crcs.size())
    throw Error(ErrorKind::kInternal,
                fmt::format("one share reports {} checksums and another {}, so they belong to different programs",
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
  add_lost(into.lost, one.lost);
  std::move(one.fragment_files.begin(), one.fragment_files.end(), std::back_inserter(into.fragment_files));
  std::move(one.divergent.begin(), one.divergent.end(), std::back_inserter(into.divergent));
  // If several shares found a replica, keep the same one whichever was merged first.
  const auto replica = [](const Divergence& divergence) { return std::pair(divergence.logical, divergence.stored); };
  std::sort(into.divergent.begin(), into.divergent.end(), [&](const Divergence& a, const Divergence& b) {
    return std::pair(replica(a), std::string_view(a.text)) < std::pair(replica(b), std::string_view(b.text));
  });
  const auto last = std::unique(into.divergent.begin(), into.divergent.end(),
                                [&](const Divergence& a, const Divergence& b) { return replica(a) == replica(b); });
  into.divergent.erase(last, into.divergent.end());
}

std::string report_bytes(const ShareReport& report) {
  Sparse sparse{report, report.crcs.size(), {}, report.digests.size(), {}};
  for (std::size_t i = 0; i < report.crcs.size(); ++i)
    if (report.crcs[i] != 0) sparse.crcs.emplace_back(i, report.crcs[i]);
  for (std::size_t t = 0; t < report.digests.size(); ++t)
    report.digests[t].for_each(
        [&](std::size_t leaf, const Sha256Digest& digest) { sparse.leaves.emplace_back(t, leaf, digest); });
  return wire_bytes(sparse);
}

ShareReport read_report(std::string_view bytes, const TargetMap& target) {
  auto [report, stored, crcs, logical, leaves] = WireReader(bytes).read<Sparse>();
  const auto validate = [](bool holds) {
    if (!holds) throw Error(ErrorKind::kBadInput, "belongs to another program");
  };
  validate((stored == 0 || stored == target.stored.size()) && (logical == 0 || logical == target.logical.size()));
  for (const std::uint32_t file : report.written_files) validate(file < target.files.size());
  report.crcs.resize(stored);
  for (const auto& [tensor, crc] : crcs) {
    validate(tensor < stored);
    report.crcs[tensor] = crc;
  }
  report.digests.reserve(logical);
  for (std::uint64_t t = 0; t < logical; ++t)
    report.digests.emplace_back(target.logical[t].dtype, target.logical[t].shape);
  for (const auto& [tensor, leaf, digest] : leaves) {
    validate(tensor < logical && leaf < report.digests[tensor].leaves());
    report.digests[tensor].set(leaf, digest);
  }
  return std::move(report);
}

}  // namespace reshard
