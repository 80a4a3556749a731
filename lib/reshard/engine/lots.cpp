#include "reshard/engine/lots.h"

#include <algorithm>
#include <utility>

namespace reshard {
namespace {

/// Of a share, what is dealt in lots. The more, the more slowly a rank may be; but where lots meet in a page of a file,
/// that goes through rank 0.
constexpr std::uint64_t kLotsPart = 4;
constexpr std::size_t kMostLots = 32;  // of a share

/// Who has less left to do than this needs more: it takes two messages until that comes.
constexpr double kLowSeconds = 0.25;
constexpr auto kNap = std::chrono::milliseconds(5);
constexpr double kLeastSeconds = 1e-3;

}  // namespace

std::vector<std::vector<Part>> Shares::separate_parts() const {
  std::vector<std::vector<Part>> all = own;
  all.insert(all.end(), lots.begin(), lots.end());
  return all;
}

Shares deal_shares(const Units& units, const std::vector<std::uint32_t>& missing, std::uint32_t count, bool with_lots) {
  const std::vector<std::size_t> firsts = units.deal(missing, count);
  Shares shares;
  shares.own.resize(count);
  for (std::uint32_t share = 0; share < count; ++share) {
    const std::size_t all = firsts[share + 1] - firsts[share];
    const std::size_t in_lots = with_lots ? all / kLotsPart : 0;
    const std::size_t lots = std::min(in_lots, kMostLots);
    std::size_t i = firsts[share];
    std::uint64_t bytes = 0;
    for (; i < firsts[share + 1] - in_lots; ++i) {
      units.add_parts(missing[i], shares.own[share]);
      bytes += units.cost(missing[i]);
    }
    shares.own_bytes.push_back(bytes);
    shares.first_lots.push_back(shares.lots.size());
    for (std::size_t lot = 0; lot < lots; ++lot) {
      const std::size_t end = firsts[share + 1] - in_lots + in_lots * (lot + 1) / lots;
      shares.lots.emplace_back();
      shares.lot_bytes.push_back(0);
      for (; i < end; ++i) {
        units.add_parts(missing[i], shares.lots.back());
        shares.lot_bytes.back() += units.cost(missing[i]);
      }
    }
  }
  shares.first_lots.push_back(shares.lots.size());
  return shares;
}

void Lots::begin(Shares shares) {
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  planned_bytes_ = shares.own_bytes[rank_];
  for (std::size_t lot = shares.first_lots[rank_]; lot < shares.first_lots[rank_ + 1]; ++lot) {
    own_.push_back(lot);
    planned_bytes_ += shares.lot_bytes[lot];
  }
  closed_ = !exchanged_ || shares.lots.empty();
  shares_ = std::move(shares);
}

const std::vector<Part>* Lots::take() {
  const std::lock_guard lock(mutex_);
  if (own_.empty()) return nullptr;
  const std::size_t lot = own_.front();
  own_.pop_front();
  return &shares_.lots[lot];
}

bool Lots::wait() {
  std::unique_lock lock(mutex_);
  if (own_.empty() && !closed_) changed_.wait_for(lock, kNap);
  return !own_.empty() || !closed_;
}

std::string Lots::tell(std::uint64_t moved_bytes, double seconds) {
  const std::lock_guard lock(mutex_);
  WireWriter wire;
  wire.add(has_begun_);
  wire.add(planned_bytes_ - std::min(planned_bytes_, moved_bytes));
  wire.add(own_.size());
  wire.add(static_cast<double>(moved_bytes + 1) / std::max(seconds, kLeastSeconds));
  wire.add(gifts_.size());
  for (const Gift& gift : gifts_) {
    wire.add(gift.to);
    wire.add(gift.lot);
  }
  gifts_.clear();
  return std::move(wire.bytes());
}

Lots::Told Lots::read(const std::string& text) {
  WireReader wire(text);
  Told told;
  told.has_begun = wire.number() != 0;
  told.left_bytes = wire.number();
  told.lots = wire.number();
  told.bytes_per_second = wire.real();
  told.gifts.resize(wire.count(16));
  for (Gift& gift : told.gifts) {
    gift.to = static_cast<std::uint32_t>(wire.number());
    gift.lot = wire.number();
  }
  return told;
}

bool Lots::hear(const std::vector<std::string>& told) {
  std::vector<Told> ranks;
  ranks.reserve(told.size());
  for (const std::string& text : told) ranks.push_back(read(text));
  const std::lock_guard lock(mutex_);
  if (closed_ || !has_begun_) return false;
  bool any_given = false, any_left = false;
  for (const Told& rank : ranks) {
    any_left = any_left || !rank.has_begun || rank.lots > 0;
    for (const Gift& gift : rank.gifts) {
      any_given = true;
      ranks[gift.to].left_bytes += shares_.lot_bytes[gift.lot];
      if (gift.to != rank_) continue;
      own_.push_back(gift.lot);
      planned_bytes_ += shares_.lot_bytes[gift.lot];
    }
  }
  closed_ = !any_left && !any_given;
  // All ranks make the same list of who gets from whom: the one with the least to do from the one with the most.
  std::vector<std::uint32_t> by_time;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank)
    if (ranks[rank].has_begun) by_time.push_back(rank);
  std::stable_sort(by_time.begin(), by_time.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return ranks[a].left_seconds() < ranks[b].left_seconds(); });
  std::vector<std::uint32_t> givers;
  for (const std::uint32_t rank : by_time)
    if (ranks[rank].lots > 0) givers.insert(givers.begin(), rank);
  for (std::size_t i = 0; i < std::min(by_time.size(), givers.size()); ++i) {
    const std::uint32_t needy = by_time[i];
    if (ranks[needy].left_seconds() > kLowSeconds) break;
    if (givers[i] == rank_ && needy != rank_) give(ranks[rank_], ranks[needy], needy);
  }
  changed_.notify_all();
  return any_given;
}

/// Gives lots from the end, until both would be done at the same time.
void Lots::give(const Told& from, const Told& to, std::uint32_t to_rank) {
  double of_from = static_cast<double>(from.left_bytes), of_to = static_cast<double>(to.left_bytes);
  while (!own_.empty()) {
    const auto bytes = static_cast<double>(shares_.lot_bytes[own_.back()]);
    if ((of_to + bytes) / to.bytes_per_second >= of_from / from.bytes_per_second) break;
    of_to += bytes;
    of_from -= bytes;
    planned_bytes_ -= shares_.lot_bytes[own_.back()];
    gifts_.push_back({to_rank, own_.back()});
    own_.pop_back();
  }
  std::reverse(gifts_.begin(), gifts_.end());  // whoever gets them goes on from the first
}

}  // namespace reshard
