#include "reshard/layouts/inference/medusa_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/rules/placed_rules.h"

namespace reshard {

namespace {

/// Validates that the heads are numbered from 0 and have the same tensors.
/// \param marker  the part of the names before the number of a head.
void validate_complete(std::span<const LogicalTensor> tensors, const std::string& marker) {
  std::map<std::uint64_t, std::set<std::string>> heads;
  for (const LogicalTensor& tensor : tensors) {
    const std::size_t begin = tensor.name.find(marker) + marker.size(), end = tensor.name.find('.', begin);
    const auto number = parse_unsigned(std::string_view(tensor.name).substr(begin, end - begin));
    if (end == tensor.name.npos || !number)
      throw Error(ErrorKind::kBadInput, "has no number of a head").tensor(tensor.name).hint("give medusa_heads.pt");
    heads[*number].insert(tensor.name.substr(end));
  }
  std::set<std::string> all;
  for (const auto& [number, names] : heads) all.insert(names.begin(), names.end());
  for (std::uint64_t head = 0; head < heads.size(); ++head)
    for (const std::string& name : all)
      if (heads.count(head) == 0 || heads.at(head).count(name) == 0)
        throw Error(ErrorKind::kBadInput, "is missing, although another head has it")
            .tensor(fmt::format("{}{}{}", marker, head, name))
            .hint("give a file with complete heads, numbered from 0");
}

}  // namespace

void plan_medusa_heads(TargetPlan& plan, const RankTarget& target, const OptionValues& values,
                       const TargetContext& context, const std::string& marker) {
  const std::vector<ModelParameter>& parameters = context.model->parameters;
  const auto head = std::find_if(parameters.begin(), parameters.end(), [](const ModelParameter& one) {
    return !one.layer && one.split_dim == 0u && one.shape.size() == 2;
  });
  if (head == parameters.end())
    throw Error(ErrorKind::kUnsupported, "has no head of the language model, which Medusa's heads are split like")
        .hint("give a model for text generation");
  const std::uint64_t vocabulary = head->shape[0], hidden = head->shape[1];
  const auto fail = [&](const LogicalTensor& tensor, ErrorKind kind, const std::string& problem,
                        const std::string& hint) { throw Error(kind, problem).tensor(tensor.name).hint(hint); };
  PlacedRules rules(plan.mesh.tp);
  std::uint64_t count = 0;
  for (const LogicalTensor& tensor : context.logical) {
    const bool is_last = tensor.shape == Dims{vocabulary, hidden};
    if (tensor.name.find(marker) == std::string::npos)
      fail(tensor, ErrorKind::kBadInput, fmt::format("is no tensor of Medusa's heads, whose names have {}", marker),
           "set `medusa-heads` to the file medusa_heads.pt of the model");
    if (!is_last && tensor.shape != Dims{hidden, hidden} && tensor.shape != Dims{hidden})
      fail(tensor, ErrorKind::kBadInput,
           fmt::format("has the shape {}, but the model has a hidden size of {} and a vocabulary of {}",
                       to_string(tensor.shape), hidden, vocabulary),
           "give the heads that were trained for this model");
    if (is_last && vocabulary == hidden)
      fail(tensor, ErrorKind::kUnsupported, "is square, so that it is unknown whether ranks split it",
           "let NxD Inference shard these weights (save_sharded_checkpoint)");
    if (is_last && vocabulary % plan.mesh.tp != 0)
      fail(tensor, ErrorKind::kUsage,
           fmt::format("has {} rows, which {} ranks do not divide: NxD Inference does not pad Medusa's heads",
                       vocabulary, plan.mesh.tp),
           "choose a `tp` that divides the vocabulary");
    ModelParameter parameter;
    parameter.name = tensor.name;
    parameter.shape = tensor.shape;
    rules.add(parameter, tensor.name, is_last ? std::optional<std::uint32_t>(0) : std::nullopt);
    count += is_last ? 1 : 0;
  }
  validate_complete(context.logical, marker);
  if (const auto needed = values.number(kMedusaCount); needed && *needed != count)
    throw Error(ErrorKind::kBadInput, fmt::format("contains {} heads, expected {}", count, *needed))
        .hint("give the file that contains as many heads as the model was compiled with (num_medusa_heads)");
  plan.map = sharded_target_map(std::move(rules).take(), plan.mesh.tp, context.logical, target);
}

}  // namespace reshard
