// The card of docs/benchmarks.md: how fast split, concat and transpose are by length of run, next to memcpy. Prints
// Markdown. scripts/bench.sh --card builds and runs it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cuts.h"
#include "reshard/tensor/values/simd.h"

namespace reshard::bench {
namespace {

constexpr std::size_t kRounds = 21;
constexpr double kLeastSeconds = 1e-3;  // of one measurement
constexpr std::size_t kParts = 8;
constexpr std::size_t kTransposedRows = 512;

using Work = std::function<void()>;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Returns how often `work` must run to take kLeastSeconds.
std::size_t times_of(const Work& work) {
  work();  // touches all memory
  for (std::size_t times = 1;; times *= 2)
    if (seconds_of([&] {
          for (std::size_t i = 0; i < times; ++i) work();
        }) >= kLeastSeconds)
      return times;
}

double speed_of(const Work& work, std::size_t times, std::size_t bytes) {
  const double seconds = seconds_of([&] {
    for (std::size_t i = 0; i < times; ++i) {
      work();
      clobber_memory();
    }
  });
  return static_cast<double>(bytes * times) / seconds;
}

/// Measures copies of `bytes`, each next to a memcpy of as many bytes.
class Card {
 public:
  explicit Card(std::size_t bytes) : bytes_(bytes), from_(some_bytes(bytes)), to_(bytes) {}

  /// Returns the median speed of `work` in units of the memcpy just before it.
  double relative_speed(const Work& work) {
    const Work plain = [this] { std::memcpy(to_.data(), from_.data(), bytes_); };
    const std::size_t times = times_of(work), plain_times = times_of(plain);
    std::vector<double> ratios;
    for (std::size_t round = 0; round < kRounds; ++round) {
      const double best = speed_of(plain, plain_times, bytes_);
      ratios.push_back(speed_of(work, times, bytes_) / best);
      memcpy_speeds().push_back(best);
    }
    return median(ratios);
  }

  /// Speeds of all memcpys so far, in bytes per second.
  static std::vector<double>& memcpy_speeds() {
    static std::vector<double> speeds;
    return speeds;
  }

 private:
  std::size_t bytes_;
  Bytes from_, to_;
};

/// Speeds of one operation, in units of memcpy; std::nullopt without xtensor.
struct Speeds {
  double simd, scalar;
  std::optional<double> xtensor;
};

Speeds measure_both(Card& card, const Work& work, const std::optional<Work>& by_xtensor) {
  Speeds speeds{};
  use_simd_target(simd_targets().back());
  speeds.scalar = card.relative_speed(work);
  use_simd_target(simd_targets().front());
  speeds.simd = card.relative_speed(work);
  if (by_xtensor) speeds.xtensor = card.relative_speed(*by_xtensor);
  return speeds;
}

Speeds speeds_of_cut(Direction direction, std::size_t run_bytes) {
  const Cut cut(kParts, run_bytes);
  Card card(cut.block.size());
  const std::vector<RunsCopy>& copies = cut.copies(direction);
  std::optional<Work> by_xtensor;
#if RESHARD_HAS_XTENSOR
  XtensorCut<std::uint16_t> matrices(kParts, run_bytes);
  by_xtensor = direction == Direction::kSplit ? Work([&] { matrices.split(); })
                                              : Work([&] { matrices.concatenate(std::make_index_sequence<kParts>()); });
#endif
  return measure_both(
      card, [&] { copy_runs_together(copies); }, by_xtensor);
}

template <typename Elem>
Speeds speeds_of_transpose() {
  const std::size_t columns = kBlockBytes / sizeof(Elem) / kTransposedRows;
  const Bytes from = some_bytes(kBlockBytes);
  Bytes to(kBlockBytes);
  Card card(kBlockBytes);
  std::optional<Work> by_xtensor;
#if RESHARD_HAS_XTENSOR
  auto matrix = xt::xtensor<Elem, 2>::from_shape({kTransposedRows, columns});
  matrix.fill(Elem{1});
  auto transposed = xt::xtensor<Elem, 2>::from_shape({columns, kTransposedRows});
  by_xtensor = [&] { xt::noalias(transposed) = xt::transpose(matrix); };
#endif
  return measure_both(
      card, [&] { transpose(kTransposedRows, columns, sizeof(Elem), from, to); }, by_xtensor);
}

std::string speed_text(double speed) {
  return speed < 0.095 ? fmt::format("{:.3f}", speed) : fmt::format("{:.2f}", speed);
}

std::string row_of(const Speeds& speeds) {
  return fmt::format("{} | {} | {}", speed_text(speeds.simd), speed_text(speeds.scalar),
                     speeds.xtensor ? speed_text(*speeds.xtensor) : "–");
}

std::string size_text(std::size_t bytes) {
  return bytes < 1024 ? fmt::format("{} B", bytes) : fmt::format("{} KiB", bytes / 1024);
}

void print_cuts() {
  fmt::print(
      "| run | split | split, scalar | split, xtensor | concat | concat, scalar | concat, xtensor "
      "|\n|---|---|---|---|---|---|---|\n");
  for (std::size_t run = 2; run <= (std::size_t{64} << 10); run *= run < 1024 ? 2 : 4)
    fmt::print("| {} | {} | {} |\n", size_text(run), row_of(speeds_of_cut(Direction::kSplit, run)),
               row_of(speeds_of_cut(Direction::kConcat, run)));
}

void print_transposes() {
  fmt::print("| elements | transpose | scalar | xtensor |\n|---|---|---|---|\n");
  fmt::print("| 1 B | {} |\n", row_of(speeds_of_transpose<std::uint8_t>()));
  fmt::print("| 2 B | {} |\n", row_of(speeds_of_transpose<std::uint16_t>()));
  fmt::print("| 4 B | {} |\n", row_of(speeds_of_transpose<std::uint32_t>()));
  fmt::print("| 8 B | {} |\n", row_of(speeds_of_transpose<std::uint64_t>()));
}

std::string xtensor_version() {
#if RESHARD_HAS_XTENSOR
  return fmt::format("xtensor {}.{}.{}", XTENSOR_VERSION_MAJOR, XTENSOR_VERSION_MINOR, XTENSOR_VERSION_PATCH);
#else
  return "no xtensor";
#endif
}

void print_card(const std::string& revision) {
  print_cuts();
  fmt::print("\n");
  print_transposes();
  fmt::print(
      "\n{}: {}, {}; {} parts, blocks of {} MiB, {} rows to transpose; medians of {} measurements, each next to a "
      "memcpy "
      "of as many bytes, of {:.1f} GB/s in the median.\n",
      revision, simd_targets().front(), xtensor_version(), kParts, kBlockBytes >> 20, kTransposedRows, kRounds,
      median(Card::memcpy_speeds()) / 1e9);
}

}  // namespace
}  // namespace reshard::bench

int main(int argc, char** argv) {
  reshard::bench::print_card(argc > 1 ? argv[1] : "of unknown revision");
}
