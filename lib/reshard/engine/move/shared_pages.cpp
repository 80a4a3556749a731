#include "reshard/engine/move/shared_pages.h"

#include <algorithm>

#include "reshard/engine/move/group.h"

namespace reshard {
namespace {

constexpr std::uint32_t kNobody = UINT32_MAX;
constexpr std::uint32_t kSeveral = UINT32_MAX - 1;

/// The range of a file from the first to the last byte that one share writes to a stored tensor.
struct Extent {
  std::uint32_t file;
  std::uint64_t begin_bytes;
  std::uint64_t end_bytes;
  std::uint32_t share;
};

/// Returns, for each stored tensor of the target, the only share that writes to it, kSeveral or kNobody.
std::vector<std::uint32_t> writers(const ProgramMaps& maps, const Program& program,
                                   const std::vector<std::vector<Part>>& shares) {
  std::vector<std::uint32_t> of_stored(maps.target->stored.size(), kNobody);
  for (std::uint32_t share = 0; share < shares.size(); ++share)
    for (const Part& part : shares[share])
      for (const Piece& piece : program.transfers[part.transfer].writes(maps)) {
        std::uint32_t& writer = of_stored[piece.stored];
        writer = writer == kNobody || writer == share ? share : kSeveral;
      }
  return of_stored;
}

/// Adds the extents that a share writes to tensors with several writers.
void add_extents_in_shared(const ProgramMaps& maps, const Program& program, const std::vector<Part>& parts,
                           std::uint32_t share, const std::vector<std::uint32_t>& writer_of,
                           std::vector<Extent>& extents) {
  for (const Part& part : parts) {
    const Transfer& transfer = program.transfers[part.transfer];
    const auto writes = transfer.writes(maps);
    if (std::none_of(writes.begin(), writes.end(),
                     [&](const Piece& piece) { return writer_of[piece.stored] == kSeveral; }))
      continue;
    const Block block(part.box(transfer.tensor(maps)));
    for (const Group& group : groups_of(*maps.target, writes, maps.target->logical[*transfer.target], block)) {
      if (writer_of[group.stored] != kSeveral) continue;
      const StoredTensor& stored = maps.target->stored[group.stored];
      extents.push_back(
          {stored.file, stored.offset_bytes + group.begin_bytes, stored.offset_bytes + group.end_bytes, share});
    }
  }
}

/// Adds the extents of one file's tensors with a single writer; adjacent tensors of one share are merged.
void add_whole_extents(const TargetMap& target, std::uint32_t file, const std::vector<std::uint32_t>& writer_of,
                       std::uint64_t page_bytes, std::vector<Extent>& extents) {
  const TargetFile& tensors = target.files[file];
  for (std::uint32_t i = tensors.first_stored; i < tensors.first_stored + tensors.stored_count; ++i) {
    const StoredTensor& stored = target.stored[i];
    if (writer_of[i] >= kSeveral || stored.size_bytes() == 0) continue;
    const Extent whole{file, stored.offset_bytes, stored.offset_bytes + stored.size_bytes(), writer_of[i]};
    if (!extents.empty() && extents.back().share == whole.share && extents.back().end_bytes <= whole.begin_bytes &&
        extents.back().end_bytes + page_bytes > whole.begin_bytes)
      extents.back().end_bytes = whole.end_bytes;
    else
      extents.push_back(whole);
  }
}

/// Returns the pages of one file that contain extents of more than one share.
std::vector<PageRange> pages_of_several(std::vector<Extent>& extents, std::uint64_t page_bytes) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin_bytes < b.begin_bytes; });
  struct Reach {
    std::uint32_t share = kNobody;
    std::uint64_t last_page = 0;
  };
  Reach farthest, second;  // the two shares that reach farthest
  std::vector<PageRange> ranges;
  for (const Extent& extent : extents) {
    if (extent.begin_bytes == extent.end_bytes) continue;
    const std::uint64_t first = extent.begin_bytes / page_bytes;
    const std::uint64_t last = (extent.end_bytes - 1) / page_bytes;
    const Reach& other = farthest.share == extent.share ? second : farthest;
    if (other.share != kNobody && other.last_page >= first) {
      const std::uint64_t met = std::min(last, other.last_page);
      if (!ranges.empty() && ranges.back().last_page + 1 >= first)
        ranges.back().last_page = std::max(ranges.back().last_page, met);
      else
        ranges.push_back({first, met});
    }
    if (farthest.share == extent.share) {
      farthest.last_page = std::max(farthest.last_page, last);
    } else if (farthest.share == kNobody || last >= farthest.last_page) {
      second = farthest;
      farthest = {extent.share, last};
    } else if (second.share == kNobody || last >= second.last_page) {
      second = {extent.share, last};
    }
  }
  return ranges;
}

}  // namespace

SharedPages::SharedPages(const ProgramMaps& maps, const Program& program, const std::vector<std::vector<Part>>& shares,
                         std::uint64_t page_bytes)
    : page_bytes_(page_bytes) {
  if (maps.target == nullptr || shares.size() < 2) return;
  const std::vector<std::uint32_t> writer_of = writers(maps, program, shares);
  std::vector<Extent> in_shared;
  for (std::uint32_t share = 0; share < shares.size(); ++share)
    add_extents_in_shared(maps, program, shares[share], share, writer_of, in_shared);
  std::sort(in_shared.begin(), in_shared.end(), [](const Extent& a, const Extent& b) { return a.file < b.file; });
  auto next = in_shared.begin();
  pages_.resize(maps.target->files.size());
  for (std::uint32_t file = 0; file < pages_.size(); ++file) {
    std::vector<Extent> extents;
    add_whole_extents(*maps.target, file, writer_of, page_bytes_, extents);
    for (; next != in_shared.end() && next->file == file; ++next) extents.push_back(*next);
    pages_[file] = pages_of_several(extents, page_bytes_);
  }
}

bool SharedPages::contains(std::uint32_t file, std::uint64_t offset_bytes) const {
  if (file >= pages_.size()) return false;
  const std::uint64_t page = offset_bytes / page_bytes_;
  const auto after =
      std::upper_bound(pages_[file].begin(), pages_[file].end(), page,
                       [](std::uint64_t wanted, const PageRange& range) { return wanted < range.first_page; });
  return after != pages_[file].begin() && std::prev(after)->last_page >= page;
}

std::uint64_t SharedPages::size_bytes() const {
  std::uint64_t pages = 0;
  for (const auto& ranges : pages_)
    for (const PageRange& range : ranges) pages += range.last_page - range.first_page + 1;
  return pages * page_bytes_;
}

bool SharedPages::empty() const {
  return std::all_of(pages_.begin(), pages_.end(), [](const auto& ranges) { return ranges.empty(); });
}

}  // namespace reshard
