#include "reshard/engine/units/lots.h"

#include <algorithm>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/wire.h"

namespace reshard {
namespace {

/// One unit in this many of a share can be handed over. With more, slower ranks are tolerated, but pages in which lots
/// meet go through rank 0.
constexpr std::size_t kUnitsPerHandedOver = 4;

/// A rank needs lots when less work than this is left to it: they arrive two messages later.
constexpr double kLowSeconds = 0.25;

}  // namespace

std::vector<std::vector<Part>> Shares::writers() const {
  std::vector<std::vector<Part>> all = own;
  for (const Lot& lot : lots) all.push_back(lot.parts);
  return all;
}

Shares deal_shares(const ProgramMaps& maps, const Program& program, const Units& units,
                   const std::vector<std::uint32_t>& missing, std::uint32_t count, std::size_t most_lots) {
  const std::vector<std::size_t> firsts = units.deal(missing, count);
  Shares shares;
  shares.own.resize(count);
  for (std::uint32_t share = 0; share < count; ++share) {
    const std::size_t in_lots = most_lots > 0 ? (firsts[share + 1] - firsts[share]) / kUnitsPerHandedOver : 0;
    const std::size_t lots = std::min(in_lots, most_lots);
    const std::size_t first_in_lots = firsts[share + 1] - in_lots;
    for (std::size_t i = firsts[share]; i < first_in_lots; ++i) units.add_parts(missing[i], shares.own[share]);
    for (std::size_t lot = 0; lot < lots; ++lot) {
      Lot& one = shares.lots.emplace_back();
      one.share = share;
      for (std::size_t i = in_lots * lot / lots; i < in_lots * (lot + 1) / lots; ++i)
        units.add_parts(missing[first_in_lots + i], one.parts);
      one.bytes = bytes_of(maps, program, one.parts);
    }
  }
  return shares;
}

void Lots::begin(std::uint64_t own_bytes, std::vector<Lot> lots) {
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  left_bytes_ = own_bytes;
  for (std::size_t lot = 0; lot < lots.size(); ++lot) {
    if (lots[lot].share != rank_) continue;
    held_.push_back(lot);
    left_bytes_ += lots[lot].bytes;
  }
  is_closed_ = lots.empty();
  lots_ = std::move(lots);
}

const Lot* Lots::take() {
  const std::lock_guard lock(mutex_);
  if (held_.empty()) return nullptr;
  const std::size_t lot = held_.front();
  held_.pop_front();
  return &lots_[lot];
}

void Lots::did(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  left_bytes_ -= std::min(left_bytes_, bytes);
  done_bytes_ += bytes;
}

bool Lots::wait(std::chrono::milliseconds moment) {
  std::unique_lock lock(mutex_);
  if (held_.empty() && !is_closed_) changed_.wait_for(lock, moment);
  return !held_.empty() || !is_closed_;
}

std::string Lots::tell(double seconds) {
  const std::lock_guard lock(mutex_);
  if (had_work_) working_seconds_ += seconds - told_seconds_;
  told_seconds_ = seconds;
  had_work_ = left_bytes_ > 0;
  const double bytes_per_second = working_seconds_ > 0 ? static_cast<double>(done_bytes_) / working_seconds_ : 0.0;
  const std::uint64_t last_lot_bytes = held_.empty() ? 0 : lots_[held_.back()].bytes;
  return wire_bytes(
      Told{has_begun_, left_bytes_, bytes_per_second, held_.size(), last_lot_bytes, std::exchange(handovers_, {})});
}

bool Lots::Told::gains_from(const Told& other) const {
  return lots > 0 && static_cast<double>(other.left_bytes + last_lot_bytes) / other.bytes_per_second < left_seconds();
}

/// Matches ranks for handovers: the last to finish gives to the first, and so on. All ranks get the same result.
/// \param ranks  messages of all ranks. A rank of unknown speed is assumed to have the average speed.
std::vector<Lots::Match> Lots::matches(const std::vector<Told>& ranks) {
  std::vector<std::uint32_t> takers, givers;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].has_begun) continue;
    if (ranks[rank].left_seconds() <= kLowSeconds) takers.push_back(rank);
    if (ranks[rank].lots > 0) givers.push_back(rank);
  }
  std::stable_sort(takers.begin(), takers.end(), [&](std::uint32_t a, std::uint32_t b) {
    const double left_a = ranks[a].left_seconds(), left_b = ranks[b].left_seconds();
    return left_a != left_b ? left_a < left_b : ranks[a].bytes_per_second > ranks[b].bytes_per_second;
  });
  std::stable_sort(givers.begin(), givers.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return ranks[a].left_seconds() > ranks[b].left_seconds(); });
  std::vector<Match> found;
  for (const std::uint32_t taker : takers) {
    const auto giver = std::find_if(givers.begin(), givers.end(), [&](std::uint32_t rank) {
      return rank != taker && ranks[rank].gains_from(ranks[taker]);
    });
    if (giver == givers.end()) continue;
    found.push_back({*giver, taker});
    givers.erase(giver);
  }
  return found;
}

bool Lots::hear(const std::vector<std::string>& told) {
  std::vector<Told> ranks;
  ranks.reserve(told.size());
  for (const std::string& text : told) ranks.push_back(WireReader(text).read<Told>());
  double known_speeds = 0;
  std::size_t known = 0;
  for (const Told& rank : ranks) {
    known_speeds += rank.bytes_per_second;
    known += rank.bytes_per_second > 0 ? 1 : 0;
  }
  for (Told& rank : ranks)
    if (rank.bytes_per_second == 0 && known > 0) rank.bytes_per_second = known_speeds / static_cast<double>(known);

  const std::lock_guard lock(mutex_);
  if (is_closed_ || !has_begun_) return false;
  bool any_left = false, any_come = false;
  for (const Told& rank : ranks) {
    any_left = any_left || !rank.has_begun || rank.lots > 0;
    for (const Handover& one : rank.handovers) {
      if (one.to_rank >= ranks.size() || one.lot >= lots_.size())
        throw Error(ErrorKind::kBadInput,
                    "another rank hands over units that do not exist: do all ranks run the same program?");
      any_come = true;
      ranks[one.to_rank].left_bytes += lots_[one.lot].bytes;
      if (one.to_rank != rank_) continue;
      held_.push_back(one.lot);
      left_bytes_ += lots_[one.lot].bytes;
    }
  }
  is_closed_ = !any_left && !any_come;
  const std::vector<Match> found = known > 0 ? matches(ranks) : std::vector<Match>{};
  for (const Match& match : found)
    if (match.giver == rank_) hand_over(ranks[rank_], ranks[match.taker], match.taker);
  changed_.notify_all();
  return !found.empty();
}

/// Hands over lots, last one first, until both ranks would finish at the same time.
void Lots::hand_over(const Told& from, const Told& to, std::uint32_t to_rank) {
  auto of_from = static_cast<double>(from.left_bytes), of_to = static_cast<double>(to.left_bytes);
  std::vector<Handover> last_first;
  while (!held_.empty()) {
    const std::uint64_t bytes = lots_[held_.back()].bytes;
    of_to += static_cast<double>(bytes);
    if (of_to / to.bytes_per_second >= of_from / from.bytes_per_second) break;
    of_from -= static_cast<double>(bytes);
    left_bytes_ -= bytes;
    last_first.push_back({to_rank, held_.back()});
    held_.pop_back();
  }
  handovers_.insert(handovers_.end(), last_first.rbegin(), last_first.rend());
}

}  // namespace reshard
