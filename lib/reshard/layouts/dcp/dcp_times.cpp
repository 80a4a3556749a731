#include "reshard/layouts/dcp/dcp_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSecondNs = 1'000'000'000;
/// What clocks of machines and a short copy may differ by.
constexpr std::int64_t kNotableNs = 5 * kSecondNs;
/// Ranks that save without the others begin at other times, but within one step of the training.
constexpr std::int64_t kRanksNs = 60 * kSecondNs;
/// A copy that shares its network with others; a faster rate would refuse copies, a slower one would take more of the
/// saves that were cut off for copies.
constexpr std::uint64_t kSlowestBytesPerSecond = std::uint64_t{32} << 20;
constexpr std::int64_t kLongestCopyNs = 300 * kSecondNs;  // of one file

std::int64_t longest_gap_ns(std::int64_t base_ns, std::uint64_t size_bytes) {
  const std::uint64_t most_seconds = kLongestCopyNs / kSecondNs;
  const std::uint64_t seconds = std::min(size_bytes / kSlowestBytesPerSecond, most_seconds);
  return std::min(kLongestCopyNs, base_ns + static_cast<std::int64_t>(seconds) * kSecondNs);
}

std::string duration(std::int64_t ns) {
  const std::int64_t seconds = ns / kSecondNs;
  return seconds < 120 ? fmt::format("{} seconds", seconds) : fmt::format("{} minutes", seconds / 60);
}

struct Written {
  std::int64_t at_ns = 0;
  const fs::path* path = nullptr;
  std::uint64_t size_bytes = 0;
  bool is_read = true;
};

/// What the files that are newer than their metadata have in common, for one note.
struct Newer {
  std::size_t count = 0;
  const fs::path* first = nullptr;
  std::int64_t longest_ns = 0;
};

/// \param files  those of `metadata`, by time.
void validate_newer(const fs::path& metadata, std::int64_t saved_ns, const std::vector<Written>& files, Newer& newer) {
  const auto next =
      std::find_if(files.begin(), files.end(), [&](const Written& file) { return file.at_ns > saved_ns; });
  if (next == files.end()) return;
  std::int64_t before_ns = saved_ns;
  for (auto file = next; file != files.end(); ++file) {
    // A copy writes the next file as soon as it has written the one before.
    if (file->is_read && file->at_ns - before_ns > longest_gap_ns(kNotableNs, file->size_bytes))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("was written {} after {}, which a save writes last: a later save into this directory was "
                              "cut off, and its files may be of two steps",
                              duration(file->at_ns - saved_ns), metadata.filename().string()))
          .in(*file->path)
          .hint("take another checkpoint; only if it is a copy that did not keep times: `touch " + metadata.string() +
                "`");
    before_ns = file->at_ns;
    if (!file->is_read || file->at_ns - saved_ns <= kNotableNs) continue;
    if (newer.count++ == 0) newer.first = file->path;
    newer.longest_ns = std::max(newer.longest_ns, file->at_ns - saved_ns);
  }
}

/// Each rank has metadata of its own, which may be of another step than those of other ranks.
/// \param all  files and metadata, by time.
void validate_ranks(const std::vector<Written>& all) {
  for (std::size_t i = 1; i < all.size(); ++i) {
    const std::int64_t gap_ns = all[i].at_ns - all[i - 1].at_ns;
    if (all[i].is_read && gap_ns > longest_gap_ns(kRanksNs, all[i].size_bytes))
      throw Error(ErrorKind::kBadInput,
                  fmt::format("was written {} after {}, which is of an earlier save: ranks of two steps would be mixed",
                              duration(gap_ns), all[i - 1].path->filename().string()))
          .in(*all[i].path)
          .hint("take another checkpoint; only if it is a copy that did not keep times: `touch " +
                (all[i].path->parent_path() / "*").string() + "`, and the `*.metadata` after that");
  }
}

}  // namespace

void validate_dcp_times(Files& files, std::span<const DcpSavedFile> saved, std::vector<std::string>& notes) {
  std::map<fs::path, std::vector<Written>> by_metadata;
  for (const DcpSavedFile& file : saved)
    if (const auto at_ns = files.modified_ns(file.path))
      by_metadata[file.metadata].push_back({*at_ns, &file.path, file.size_bytes, file.is_read});
  const auto by_time = [](const Written& a, const Written& b) {
    return std::tie(a.at_ns, *a.path) < std::tie(b.at_ns, *b.path);
  };
  Newer newer;
  std::vector<Written> all;
  for (auto& [metadata, written] : by_metadata) {
    const auto saved_ns = files.modified_ns(metadata);
    if (!saved_ns) continue;
    std::sort(written.begin(), written.end(), by_time);
    validate_newer(metadata, *saved_ns, written, newer);
    all.insert(all.end(), written.begin(), written.end());
    all.push_back({*saved_ns, &metadata, 0});
  }
  if (by_metadata.size() > 1) {
    std::sort(all.begin(), all.end(), by_time);
    validate_ranks(all);
  }
  if (newer.count == 0) return;
  notes.push_back(fmt::format(
      "{} file{} written up to {} after the metadata, which a save writes last, such as {}: a copy that does not keep "
      "times does that; but if a later save into this directory was cut off, the output mixes two steps",
      newer.count, newer.count == 1 ? " was" : "s were", duration(newer.longest_ns),
      printable(newer.first->filename().string())));
}

}  // namespace reshard
