#include "reshard/layouts/states/optimizer_stage.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/states/compare_states.h"

namespace reshard {
namespace {

/// Compares the optimizer of a rank with that of the first rank of its stage, or of the first stage.
class Agreement {
 public:
  Agreement(const OptimizerStage& own, const OptimizerStage& first) : own_(own), first_(first) {}

  void validate_groups(bool same_stage) const {
    if (own_.form != first_.form)
      throw unlike(own_.form == OptimizerStage::Form::kZero1 ? "has the states of ZeRO-1" : "has no states of ZeRO-1");
    if (own_.groups.size() != first_.groups.size())
      throw unlike(fmt::format("has {} parameter groups", own_.groups.size()));
    if (own_.first_expert_group != first_.first_expert_group)
      throw unlike(fmt::format("its groups of experts begin with group {}", own_.first_expert_group));
    for (std::size_t g = 0; g < own_.groups.size(); ++g) {
      validate_values(g);
      if (same_stage && own_.groups[g].count != first_.groups[g].count)
        throw unlike(fmt::format("its parameter group {} has {} parameters", g, own_.groups[g].count));
    }
  }

  void validate_entries() const {
    const auto shards = first_.of_rank(0);
    const auto [own, other] = std::mismatch(
        own_.shards.begin(), own_.shards.end(), shards.begin(), shards.end(), [](const auto& a, const auto& b) {
          return a.entry == b.entry && a.state() == b.state() && a.tensor.dtype == b.tensor.dtype;
        });
    std::size_t other_states = own_.entries.size();  // the first entry whose states differ
    if (own != own_.shards.end()) other_states = own->entry;
    if (other != shards.end()) other_states = std::min<std::size_t>(other_states, other->entry);
    for (std::uint32_t e = 0; e < own_.entries.size(); ++e) {
      if (e == other_states || own_.entries[e].numbers != first_.entries[e].numbers)
        throw differs(e, states_of(own_, e), states_of(first_, e));
      if (own_.entries[e].shape != first_.entries[e].shape)
        throw differs(e, shape_of(own_.entries[e]), shape_of(first_.entries[e]));
    }
  }

 private:
  Error bad(const std::string& message) const {
    return Error(ErrorKind::kBadInput, message + short_name(first_.path, own_.path))
        .in(own_.path)
        .hint("the files come from different checkpoints, or one of them is damaged");
  }
  Error unlike(const std::string& message) const { return bad(message + ", unlike "); }
  Error differs(std::uint32_t entry, const std::string& own, const std::string& other) const {
    return bad(fmt::format("{} has{}, but{} in ", own_.name_of(entry), own, other));
  }

  /// Validates the hyperparameters of a group.
  void validate_values(std::size_t group) const {
    const PlainValue::Dict &own = own_.groups[group].values, &others = first_.groups[group].values;
    if (own == others) return;
    const auto text = [](const PlainValue* value) { return value == nullptr ? "missing" : to_string(*value); };
    const auto differences = different_hyperparameters(own, others);
    const auto least = std::min_element(differences.begin(), differences.end(),
                                        [](const auto& a, const auto& b) { return a.key < b.key; });
    if (least == differences.end())
      throw bad(fmt::format("its parameter group {} has its values in another order than that in ", group));
    throw bad(fmt::format("{} of its parameter group {} is {}, but {} in ", printable(least->key), group,
                          text(least->a), text(least->b)));
  }

  /// Returns what must be equal on all ranks of an entry's states, as text.
  static std::string states_of(const OptimizerStage& stage, std::uint32_t entry) {
    std::string text;
    const auto add = [&](const StateShard& shard, std::string_view state) {
      if (shard.entry == entry) text += fmt::format(" {} {},", name(shard.tensor.dtype), state);
    };
    for (const StateShard& shard : stage.of_rank(0))
      if (!shard.is_master()) add(shard, shard.state());
    for (const auto& [number, value] : stage.entries[entry].numbers)
      text += fmt::format(" {} = {},", number, to_string(value));
    for (const StateShard& shard : stage.of_rank(0))
      if (shard.is_master()) add(shard, "master weights");
    if (text.empty()) return " nothing";
    text.pop_back();
    return text;
  }

  static std::string shape_of(const OptimizerEntry& entry) {
    return entry.shape ? " the shape " + to_string(*entry.shape) : std::string(" no shape");
  }

  const OptimizerStage& own_;
  const OptimizerStage& first_;
};

}  // namespace

std::span<const StateShard> OptimizerStage::of_rank(std::uint32_t rank) const {
  const auto first =
      std::partition_point(shards.begin(), shards.end(), [&](const auto& one) { return one.rank < rank; });
  const auto end = std::partition_point(first, shards.end(), [&](const auto& one) { return one.rank == rank; });
  return {first, end};
}

std::string OptimizerStage::name_of(std::uint32_t entry) const {
  if (const std::string& own = entries[entry].name; !own.empty()) return printable(own);
  const std::size_t dense = num_dense();
  return entry < dense ? fmt::format("id {}", entry) : fmt::format("id {} of the experts", entry - dense);
}

std::optional<std::uint32_t> OptimizerStage::first_without_master() const {
  std::vector<bool> trained, has_master(entries.size());
  for (const OptimizerEntry& entry : entries) trained.push_back(!entry.numbers.empty());
  for (const StateShard& shard : of_rank(0)) (shard.is_master() ? has_master : trained)[shard.entry] = true;
  for (std::uint32_t e = 0; e < entries.size(); ++e)
    if (trained[e] && !has_master[e]) return e;
  return std::nullopt;
}

std::string short_name(const std::filesystem::path& path, const std::filesystem::path& other) {
  const std::filesystem::path name = path.filename();
  return (name == other.filename() ? path.parent_path().filename() / name : name).string();
}

void validate_agreement(const OptimizerStage& rank, const OptimizerStage& first, bool same_stage) {
  const Agreement agreement(rank, first);
  agreement.validate_groups(same_stage);
  if (same_stage) agreement.validate_entries();
}

}  // namespace reshard
