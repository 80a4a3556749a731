#include "reshard/engine/ranks/run_fingerprint.h"

#include <algorithm>
#include <array>

namespace reshard {
namespace {

bool casts(const Transfer& transfer, const ProgramMaps& maps) {
  return transfer.target && transfer.tensor(maps).dtype != maps.target->logical[*transfer.target].dtype;
}

bool may_differ(const Reading& reading) {
  return std::any_of(reading.checks.begin(), reading.checks.end(),
                     [](const Check& check) { return check.may_drift || check.may_differ; }) ||
         std::any_of(reading.inputs.begin(), reading.inputs.end(), may_differ);
}

}  // namespace

Fingerprint run_fingerprint(const Job& job, const RunOptions& options) {
  const ProgramMaps maps = job.maps();
  const std::vector<Transfer>& transfers = job.program.transfers;
  const bool any_casts =
      std::any_of(transfers.begin(), transfers.end(), [&](const Transfer& one) { return casts(one, maps); });
  const bool any_differ = std::any_of(transfers.begin(), transfers.end(),
                                      [](const Transfer& one) { return one.source && may_differ(*one.source); });
  // 0 if the option has no effect.
  const std::array<std::uint64_t, 2> effective{any_casts ? static_cast<std::uint64_t>(options.overflow) + 1 : 0,
                                               any_differ ? static_cast<std::uint64_t>(options.replicas) + 1 : 0};
  return fingerprint_of(job, effective);
}

}  // namespace reshard
