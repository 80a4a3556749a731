// Any family by any placement (layout, TP, PP, EP, padding, order of heads, file format), from there to any other, and
// back to the whole model.

#include <set>

#include "reshard/plan/convert.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/models.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Sample {
  std::string name;
  bool experts = false;
  TensorMap tensors;
};

/// A model of any family in `directory`.
Sample random_sample(Random& random, const fs::path& directory) {
  if (random() % 3 == 0) {  // of those whose heads have layouts of their own
    const TinyModel model = random_model(random);
    Sample sample{model.model_type + " " + model.config().dump(), false, random_tensors(model, random)};
    write_model(directory, model, sample.tensors);
    return sample;
  }
  if (random() % 2 == 0) {
    const FamilyCase c = with_six_experts(kExpertFamilies[pick(random, 0, std::size(kExpertFamilies) - 1)]);
    return {c.name, true, write_case(c, directory)};
  }
  const std::vector<FamilyCase> cases = family_cases();
  const FamilyCase& c = cases[pick(random, 0, cases.size() - 1)];
  return {c.name, false, write_case(c, directory)};
}

/// A placement that knows of no model: many do not fit.
ShardingRequest random_placement(Random& random, bool experts) {
  ShardingRequest request;
  const bool spread = experts && random() % 2 == 0;
  const ShardsKindRow& row = kShardsKinds[pick(random, 0, spread ? 1 : std::size(kShardsKinds) - 1)];
  request.form.kind = row.kind;
  request.form.format = row.deployed                          ? Format::kSafetensors
                        : row.torch_only && random() % 2 == 0 ? Format::kPytorch
                        : row.torch_only                      ? Format::kXser
                                                              : static_cast<Format>(random() % 3);
  request.tp = static_cast<std::uint32_t>(spread ? pick(random, 1, 2) : one_of(random, {1, 2, 2, 3, 4, 6, 8}));
  request.pp = row.deployed ? 1 : static_cast<std::uint32_t>(pick(random, 1, 2));
  request.ep = row.has_metadata && experts ? static_cast<std::uint32_t>(one_of(random, {1, 2, 3, 6})) : 1;
  request.pad = row.deployed && random() % 2;
  request.vocab_parallel = row.kind == ShardsKind::kNxdi && random() % 2;
  request.attention.fuse_qkv = row.kind != ShardsKind::kPresharded && random() % 2;
  request.attention.pad_heads = row.kind == ShardsKind::kNxd && random() % 2;
  if (row.kind == ShardsKind::kNxd && random() % 2) request.attention.replication = KvReplication::kAdjacent;
  if (!row.deployed && random() % 3 == 0) request.attention.kv_size_multiplier = one_of(random, {1, 2, 3, 4});
  return request;
}

std::string text_of(const ShardingRequest& request) {
  return std::string(describe(request.form.kind).name) + " " + std::string(name(request.form.format)) + " tp " +
         std::to_string(request.tp) + " pp " + std::to_string(*request.pp) + " ep " + std::to_string(*request.ep) +
         (request.pad ? " pad" : "") + (request.vocab_parallel ? " vocab-parallel" : "") +
         (request.attention.fuse_qkv ? " fuse-qkv" : "") + (request.attention.pad_heads ? " pad-attn-heads" : "") +
         (request.attention.kv_size_multiplier ? " x" + std::to_string(*request.attention.kv_size_multiplier) : "") +
         (request.attention.replication == KvReplication::kAdjacent ? " adjacent" : "");
}

/// What has to be said of the heads where the placement is read again.
AttentionOptions heads_of(const ShardingRequest& placement) {
  AttentionOptions heads;
  if (placement.form.kind != ShardsKind::kNxd) return heads;
  heads.replication = placement.attention.replication;
  heads.kv_size_multiplier = placement.attention.kv_size_multiplier;
  heads.pad_heads = placement.attention.pad_heads;
  return heads;
}

/// \returns false if the model cannot be placed so.
bool place(const fs::path& model, const fs::path& output, const ShardingRequest& placement) {
  ShardRequest request = shard_request(model, output);
  request.sharding = placement;
  std::unique_ptr<Job> job;
  try {
    job = plan_shard(request);
  } catch (const Error& error) {
    INFO(error.what());
    CHECK((error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kUnsupported));
    CHECK_FALSE(error.hint().empty());
    CHECK_FALSE(fs::exists(output));
    return false;
  }
  execute(*job, unsynced());
  return true;
}

TensorMap put_together(const fs::path& shards, const fs::path& output, const ShardingRequest& placement) {
  fs::remove_all(output);
  ConsolidateRequest request;
  request.checkpoint_directory = shards;
  request.output_directory = output;
  request.heads = heads_of(placement);
  consolidate(request);
  return read_model(output);
}

TEST_CASE("Any model comes back from any placement, and from one to another it is as if it had been made directly") {
  std::set<std::string> families;
  std::map<ShardsKind, std::size_t> placed, converted;
  std::size_t padded = 0, adjacent = 0, spread = 0;
  for (const std::uint64_t seed : seeds(250)) {
    Random random(seed);
    const TempDir temp;
    const Sample sample = random_sample(random, temp / "model");
    const ShardingRequest first = random_placement(random, sample.experts);
    const ShardingRequest second = random_placement(random, sample.experts);
    INFO("RESHARD_TEST_SEED=" << seed << " " << sample.name << "\n" << text_of(first) << "\n" << text_of(second));
    if (!place(temp / "model", temp / "first", first)) continue;
    CHECK((put_together(temp / "first", temp / "whole", first) == sample.tensors));
    families.insert(sample.name.substr(0, sample.name.find(' ')));
    ++placed[first.form.kind];
    padded += first.pad || first.attention.pad_heads;
    adjacent += first.attention.replication == KvReplication::kAdjacent;
    spread += *first.ep > 1;

    if (!place(temp / "model", temp / "second", second)) continue;
    ConvertRequest request = convert_request(temp / "first", temp / "converted");
    request.heads = heads_of(first);
    request.to = second.form.kind;
    request.format = second.form.format;
    request.tp = second.tp;
    request.sharding = second;
    convert(request);
    CHECK((read_shards(temp / "converted") == read_shards(temp / "second")));
    CHECK((put_together(temp / "converted", temp / "whole", second) == sample.tensors));
    ++converted[second.form.kind];
  }
  if (!has_all_seeds()) return;
  CHECK(families.size() > 25);
  for (const ShardsKindRow& row : kShardsKinds) {
    CAPTURE(row.name);
    CHECK(placed[row.kind] > 5);
    CHECK(converted[row.kind] > 2);
  }
  CHECK(padded > 10);
  CHECK(adjacent > 5);
  CHECK(spread > 10);
}

TEST_CASE("Every family is filled up where the ranks do not divide and it may be, and comes back") {
  std::size_t filled = 0, refused = 0;
  for (const FamilyCase& c : family_cases()) {
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const std::uint32_t tp : {2u, 3u, 5u, 7u}) {
      CAPTURE(c.name, tp);
      fs::remove_all(temp / "out");
      ShardRequest request = deployed_request(ShardsKind::kPresharded, temp / "model", temp / "out", tp);
      request.sharding.pad = true;
      if (!place(temp / "model", temp / "out", request.sharding)) {
        ++refused;
        continue;
      }
      std::uint32_t rank = 0;
      const auto ranks = read_weights(temp / "out");
      REQUIRE(ranks.size() == tp);
      for (const auto& [file, held] : ranks) {
        for (const auto& tensor : c.json["tensors"]) {
          const auto tensor_name = tensor["name"].get<std::string>();
          const int dim = tensor["split"].get<int>();
          const TensorData& whole = tensors.at(tensor_name);
          CAPTURE(file, tensor_name);
          REQUIRE(held.count(tensor_name) == 1);
          const std::uint64_t size = dim < 0 ? 0 : whole.shape[static_cast<std::size_t>(dim)];
          if (size % tp == 0) {
            CHECK((held.at(tensor_name) == rank_part(c, tensor, whole, tp, rank)));
            continue;
          }
          // Rows of a bias get the lowest bfloat16, as NxD's layers have it, all else zeros.
          const bool bias = tensor_name.ends_with(".bias");
          const std::uint64_t each = (size + tp - 1) / tp;
          const std::string filler = bias ? std::string("\x7f\xff") : std::string(bits(whole.dtype) / 8, '\0');
          CHECK((held.at(tensor_name) ==
                 slices(whole, static_cast<std::size_t>(dim), {{rank * each, (rank + 1) * each}}, filler)));
          ++filled;
        }
        ++rank;
      }
      CHECK((consolidated(temp / "out", temp / "whole") == tensors));
    }
  }
  CHECK(filled > 500);
  CHECK(refused > 10);
}

}  // namespace
}  // namespace reshard::test
