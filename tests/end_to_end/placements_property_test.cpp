// Any family by any placement (layout, TP, PP, EP, padding, order of heads, file format), from there to any other, and
// back to the whole model.

#include <set>

#include "reshard/layouts/training/training_layout.h"
#include "reshard/plan/job/convert.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/families.h"
#include "support/layouts.h"
#include "support/local_files.h"
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
TargetRequest random_placement(Random& random, bool experts) {
  TargetRequest request;
  std::vector<const Layout*> sharded;
  const bool spread = experts && random() % 2 == 0;
  for (const Layout* one : layouts())
    if (one->traits().has_ranks && one->traits().is_written() && (!spread || one->traits().has_experts))
      sharded.push_back(one);
  request.layout = sharded[pick(random, 0, sharded.size() - 1)];
  const LayoutTraits& traits = request.layout->traits();
  request.format = traits.formats[pick(random, 0, traits.formats.size() - 1)];
  request.tp = static_cast<std::uint32_t>(spread ? pick(random, 1, 2) : one_of(random, {1, 2, 2, 3, 4, 6, 8}));
  request.pp = traits.has_stages ? static_cast<std::uint32_t>(pick(random, 1, 2)) : 1;
  request.ep = traits.has_experts && experts ? static_cast<std::uint32_t>(one_of(random, {1, 2, 3, 6})) : 1;
  for (const LayoutOption* option : request.layout->options()) {
    const std::string name = option->name;
    if (option->only_of_source) continue;
    if (option->type == LayoutOption::Type::kFlag) request.options.set_flag(name, random() % 2);
    if (option->type == LayoutOption::Type::kChoice)
      request.options.set(name, option->choices[pick(random, 0, option->choices.size() - 1)]);
    if (option->type == LayoutOption::Type::kCount && random() % 3 == 0)
      request.options.set_number(name, one_of(random, {1, 2, 3, 4}));
  }
  return request;
}

std::string text_of(const TargetRequest& request) {
  std::string text = std::string(request.layout->traits().name) + " " + std::string(name(*request.format)) + " tp " +
                     std::to_string(*request.tp) + " pp " + std::to_string(*request.pp) + " ep " +
                     std::to_string(*request.ep);
  for (const LayoutOption* option : request.layout->options())
    if (request.options.has(option->name))
      text +=
          std::string(" ") + option->name +
          (option->type == LayoutOption::Type::kCount ? " " + std::to_string(*request.options.number(*option)) : "");
  return text;
}

/// What has to be said of the source where the placement is read again.
OptionValues source_options_of(const TargetRequest& placement) {
  OptionValues values = placement.options;
  for (const std::string& name : values.names()) {
    const auto options = placement.layout->options();
    const bool of_source = std::any_of(options.begin(), options.end(), [&](const LayoutOption* option) {
      return option->of_source && name == option->name;
    });
    if (!of_source) values.erase(name);
  }
  return values;
}

/// \returns false if the model cannot be placed so.
bool place(const fs::path& model, const fs::path& output, const TargetRequest& placement) {
  ShardRequest request = shard_request(model, output);
  request.target = placement;
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

/// Says by options what a conversion keeps of its source's attention. \returns false if there is no such option.
bool say_what_is_kept(const Job& conversion, std::uint32_t source_tp, TargetRequest& target) {
  const PartitionOptions& source = conversion.source_partition;
  if (dynamic_cast<const TrainingLayout*>(target.layout) == nullptr || !conversion.attention) return true;
  const AttentionReport& attention = *conversion.attention;
  const auto options = target.layout->options();
  const bool has_switch = std::any_of(options.begin(), options.end(), [](const LayoutOption* option) {
    return option->name == std::string("qkv-linear");
  });
  const bool is_auto = !has_switch || target.options.all().at("qkv-linear") == "auto";
  if (is_auto && is_fused(source.attention)) target.options.set("fuse-qkv");
  if (has_switch && is_auto && is_grouped_query(source.attention)) target.options.set("qkv-linear", "on");
  if (source_tp == *target.tp) {
    if (has_switch) target.options.set_flag("pad-attn-heads", target.options.has("pad-attn-heads") || source.pad_heads);
    const bool pad = target.options.has("pad-attn-heads");
    if (source.kv_size_multiplier && !target.options.has("kv-size-multiplier") &&
        multiplier_problem(attention.heads, attention.kv_heads, source_tp, *source.kv_size_multiplier, pad).empty()) {
      target.options.set_number("kv-size-multiplier", *source.kv_size_multiplier);
    }
  }
  return has_switch || !is_grouped_query(attention.form) || needs_gqa_qkv(attention.kv_heads, *target.tp);
}

TensorMap put_together(const fs::path& shards, const fs::path& output, const TargetRequest& placement) {
  fs::remove_all(output);
  ConsolidateRequest request;
  request.source.path = shards;
  request.output_directory = output;
  request.source.options = source_options_of(placement);
  consolidate(request);
  return read_model(output);
}

TEST_CASE("Any model comes back from any placement, and from one to another it is as if it had been made directly") {
  std::set<std::string> families;
  std::map<const Layout*, std::size_t> placed, converted;
  std::size_t padded = 0, adjacent = 0, spread = 0;
  for (const std::uint64_t seed : seeds(320)) {
    Random random(seed);
    const TempDir temp;
    const Sample sample = random_sample(random, temp / "model");
    const TargetRequest first = random_placement(random, sample.experts);
    const TargetRequest second = random_placement(random, sample.experts);
    INFO("RESHARD_TEST_SEED=" << seed << " " << sample.name << "\n" << text_of(first) << "\n" << text_of(second));
    if (!place(temp / "model", temp / "first", first)) continue;
    CHECK((put_together(temp / "first", temp / "whole", first) == sample.tensors));
    families.insert(sample.name.substr(0, sample.name.find(' ')));
    ++placed[first.layout];
    padded += first.options.has("pad") || first.options.has("pad-attn-heads");
    for (const LayoutOption* option : first.layout->options())
      adjacent += option->type == LayoutOption::Type::kChoice && first.options.choice(*option) == "adjacent";
    spread += *first.ep > 1;

    if (!place(temp / "model", temp / "second", second)) continue;
    ConvertRequest request = convert_request(temp / "first", temp / "converted");
    request.source.options = source_options_of(first);
    request.target = second;
    const auto conversion = plan_convert(request);
    execute(*conversion, unsynced());
    TargetRequest said = second;
    const bool can_say = say_what_is_kept(*conversion, *first.tp, said);
    fs::remove_all(temp / "second");
    REQUIRE(place(temp / "model", temp / "second", said));
    if (!second.layout->traits().needs_no_mesh && can_say)
      CHECK((read_shards(temp / "converted") == read_shards(temp / "second")));
    CHECK((put_together(temp / "converted", temp / "whole", second) == sample.tensors));
    ++converted[second.layout];
  }
  if (!has_all_seeds()) return;
  CHECK(families.size() > 25);
  for (const Layout* one : layouts()) {
    if (!one->traits().has_ranks || !one->traits().is_written()) continue;
    CAPTURE(one->traits().name);
    CHECK(placed[one] > 5);
    CHECK(converted[one] > 2);
  }
  CHECK(padded > 10);
  CHECK(adjacent > 5);
  CHECK(spread > 10);
}

TEST_CASE("Every family is padded where the ranks do not divide and it may be, and comes back") {
  std::size_t filled = 0, refused = 0;
  for (const FamilyCase& c : family_cases()) {
    const TempDir temp;
    const TensorMap tensors = write_case(c, temp / "model");
    for (const std::uint32_t tp : {2u, 3u, 5u, 7u}) {
      CAPTURE(c.name, tp);
      fs::remove_all(temp / "out");
      ShardRequest request = deployed_request(layout("presharded"), temp / "model", temp / "out", tp);
      request.target.options.set_flag("pad", true);
      if (!place(temp / "model", temp / "out", request.target)) {
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
          // Blocks and groups of what is quantised stay whole; how much that makes is another test's.
          const bool quantized = c.json["config"].contains("quantization_config");
          const std::uint64_t held_size = dim < 0 ? 0 : held.at(tensor_name).shape[static_cast<std::size_t>(dim)];
          if (size % tp == 0 && (!quantized || held_size == size / tp)) {
            CHECK((held.at(tensor_name) == rank_part(c, tensor, whole, tp, rank)));
            continue;
          }
          // Rows of a bias get the lowest bfloat16, as NxD's layers have it, all else zeros.
          const bool bias = tensor_name.ends_with(".bias");
          const std::uint64_t each = quantized ? held_size : (size + tp - 1) / tp;
          REQUIRE(each * tp >= size);
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
