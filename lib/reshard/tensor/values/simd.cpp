#include "reshard/tensor/values/simd.h"

#include <hwy/highway.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "reshard/base/error.h"

namespace reshard {
namespace {

constexpr std::string_view kScalar = "scalar";

std::atomic<bool> scalar_is_forced{false};

/// An instruction set that the CPU supports and that this build has code for.
struct Target {
  std::string name;
  std::int64_t bit;
};

/// A lower bit is a better instruction set. Highway's scalar and emulated targets are no better than plain C++.
std::vector<Target> vector_targets(std::int64_t bits) {
  std::vector<Target> targets;
  for (; bits != 0; bits &= bits - 1) {
    const std::int64_t bit = bits & -bits;
    if (bit == HWY_SCALAR || bit == HWY_EMU128) continue;
    std::string name = hwy::TargetName(bit);
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    targets.push_back({std::move(name), bit});
  }
  return targets;
}

std::vector<std::string> names_of(const std::vector<Target>& targets) {
  std::vector<std::string> names;
  for (const Target& target : targets) names.push_back(target.name);
  names.emplace_back(kScalar);
  return names;
}

/// Initialized before any target is disabled, which would remove it from Highway's list.
const std::vector<Target>& all_vector_targets() {
  static const std::vector<Target> kTargets = vector_targets(hwy::SupportedTargets() & HWY_TARGETS);
  return kTargets;
}

void force(std::string_view name, std::string_view asked_by) {
  if (name == kScalar) {
    scalar_is_forced = true;
    return;
  }
  std::string known;
  for (const Target& target : all_vector_targets()) {
    if (target.name == name) {
      hwy::DisableTargets(~target.bit);
      scalar_is_forced = false;
      return;
    }
    known += target.name + ", ";
  }
  throw Error(ErrorKind::kUsage, std::string(asked_by) + " does not name an instruction set of this machine: \"" +
                                     std::string(name) + "\"")
      .hint("this machine has " + known + std::string(kScalar));
}

/// Set once the environment was read or overridden.
std::once_flag chosen;

void choose_from_environment() {
  const char* name = std::getenv("RESHARD_SIMD");
  if (name && *name) force(name, "RESHARD_SIMD");
}

}  // namespace

std::vector<std::string> simd_targets() {
  return names_of(all_vector_targets());
}

std::vector<std::string> compiled_simd_targets() {
  return names_of(vector_targets(HWY_TARGETS));
}

std::string chosen_simd_target() {
  if (simd_is_scalar()) return std::string(kScalar);
  return names_of(vector_targets(hwy::SupportedTargets() & HWY_TARGETS)).front();
}

void use_simd_target(std::string_view name) {
  std::call_once(chosen, [] {});
  force(name, "The request");
}

bool simd_is_scalar() {
  std::call_once(chosen, choose_from_environment);
  return scalar_is_forced.load(std::memory_order_relaxed);
}

}  // namespace reshard
