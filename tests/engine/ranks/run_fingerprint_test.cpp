#include "reshard/engine/ranks/run_fingerprint.h"

#include <set>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/local_files.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

/// A model, and its shards of two ranks, in each of two places.
struct TwoPlaces {
  TwoPlaces() {
    for (const char* place : {"a", "elsewhere/b"}) {
      Random random(3);
      write_model(temp / place / "model", model, random_tensors(model, random), 2);
      shard(shard_request(temp / place / "model", temp / place / "shards", 2));
    }
  }
  TempDir temp;
  TinyModel model;
};

std::unique_ptr<Job> consolidation(const fs::path& place, std::uint64_t max_shard_bytes = 5'000'000'000) {
  Request request = consolidate_request(place / "shards", place / "whole");
  request.target.options.set_number("max-shard-size", max_shard_bytes);
  return plan_consolidate(request);
}

TEST_CASE("Runs that write the same have one fingerprint whatever their directories, threads, memory and storage") {
  const TwoPlaces two;
  const fs::path a = two.temp / "a", b = two.temp / "elsewhere/b";
  Random random(1);
  FaultStorage storage;
  const auto shard_a = plan_shard(shard_request(a / "model", a / "out", 2));
  const auto shard_b = plan_shard(shard_request(b / "model", b / "out", 2));
  const auto whole_a = consolidation(a);
  const auto whole_b = consolidation(b);
  for (int tries = 0; tries < 5; ++tries) {
    CHECK(run_fingerprint(*shard_a, random_run(random, storage)) == run_fingerprint(*shard_b, {}));
    CHECK(run_fingerprint(*whole_a, random_run(random, storage)) == run_fingerprint(*whole_b, {}));
  }
}

TEST_CASE("Runs of other requests have other fingerprints") {
  const TwoPlaces two;
  const fs::path a = two.temp / "a";
  std::set<std::string> seen;
  std::size_t all = 0;
  const auto add = [&](const Job& job) {
    seen.insert(to_string(run_fingerprint(job, {})));
    ++all;
  };
  for (const std::uint32_t tp : {1u, 2u})
    for (const std::uint32_t pp : {1u, 2u})
      for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
        Request request = shard_request(a / "model", a / "out", tp, pp);
        request.target.format = format;
        add(*plan_shard(request));
      }
  for (const std::uint64_t max_bytes : {2000, 4000}) add(*consolidation(a, max_bytes));
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    Request request = convert_request(a / "model", a / "out");
    request.dtype = dtype;
    add(*plan_convert(request));
  }
  write_model(a / "model", two.model, read_model(a / "model"), 3);  // the same tensors in other files
  add(*plan_shard(shard_request(a / "model", a / "out", 2)));
  CHECK(seen.size() == all);
}

TEST_CASE("An option counts where it has an effect, and only there") {
  const TwoPlaces two;
  const fs::path a = two.temp / "a";
  const auto check = [](const Job& job, bool of_overflow, bool of_replicas) {
    const auto plain = run_fingerprint(job, {});
    CHECK((run_fingerprint(job, {.overflow = Overflow::kError}) != plain) == of_overflow);
    CHECK((run_fingerprint(job, {.replicas = Replicas::kFirst}) != plain) == of_replicas);
  };
  check(*plan_shard(shard_request(a / "model", a / "out", 2)), false, false);
  Request request = convert_request(a / "model", a / "out");
  request.dtype = DType::kF16;
  check(*plan_convert(request), true, false);
  check(*consolidation(a), false, true);
}

}  // namespace
}  // namespace reshard::test
