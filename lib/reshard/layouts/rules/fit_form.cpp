#include "reshard/layouts/rules/fit_form.h"

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>

namespace reshard {

HeldTensors::HeldTensors(const std::vector<std::vector<Container>>& files) {
  for (const std::vector<Container>& stage : files)
    for (const Container& file : stage) add(file);
}

void HeldTensors::add(const Container& file) {
  for (const TensorEntry& tensor : file.tensors) by_name_.emplace(tensor.name, Place{&tensor, &file});
}

const TensorEntry* HeldTensors::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.tensor;
}

Error HeldTensors::error(ErrorKind kind, std::string_view name, const std::string& message) const {
  return Error(kind, message).in(by_name_.at(name).file->path).tensor(std::string(name));
}

RuleShapes::RuleShapes(const Model& model) {
  for (const ModelParameter& parameter : model.parameters) shapes_.emplace(parameter.name, &parameter.shape);
}

std::optional<Dims> RuleShapes::of(const PartitionRule& rule, std::uint32_t rank) const {
  std::vector<Dims> parts;
  for (const PartitionRule::Part& part : rule.parts) {
    const auto shape = shapes_.find(part.changed ? part.changed->parameter : part.logical_name);
    if (shape == shapes_.end()) return std::nullopt;
    parts.push_back(part.changed ? part.changed->change.shape_of(*shape->second) : *shape->second);
  }
  const auto stored = stored_shape(rule, rank, parts);
  return stored ? std::optional(file_shape(rule, rank, *stored)) : std::nullopt;
}

FileMisfits file_misfits(const Container& file, const std::vector<PartitionRule>& rules, const RuleShapes& shapes) {
  const HeldTensors held(file);
  FileMisfits misfits;
  std::unordered_set<std::string_view> known;
  for (const PartitionRule& rule : rules) {
    known.insert(rule.stored_name);
    const TensorEntry* tensor = held.find(rule.stored_name);
    if (tensor == nullptr && misfits.missing.empty()) misfits.missing = rule.stored_name;
    misfits.count += tensor == nullptr || shapes.of(rule) != tensor->shape;
  }
  for (const TensorEntry& tensor : file.tensors) {
    if (known.count(tensor.name) > 0) continue;
    if (misfits.strange.empty()) misfits.strange = tensor.name;
    ++misfits.count;
  }
  return misfits;
}

namespace {

/// The forms tried so far.
struct FormSearch {
  const std::function<std::size_t(const OptionValues&)>& misfits;
  std::optional<OptionValues> best = std::nullopt;  // with the fewest misfits
  std::size_t fewest = SIZE_MAX;

  /// Tries the values of all `unknowns`. Returns whether a form fits.
  bool run(const OptionValues& form, std::span<const Unknown> unknowns) {
    if (unknowns.empty()) return attempt(form);
    for (const std::string& value : unknowns.front().values) {
      OptionValues next = form;
      if (value.empty())
        next.erase(unknowns.front().option->name);
      else
        next.set(unknowns.front().option->name, value);
      if (run(next, unknowns.subspan(1))) return true;
    }
    return false;
  }

  bool attempt(const OptionValues& form) {
    std::size_t count = SIZE_MAX;
    try {
      count = misfits(form);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) throw;
    }
    if (count < fewest || !best) best = form;
    fewest = std::min(fewest, count);
    return count == 0;
  }
};

}  // namespace

bool fit_form(OptionValues& form, std::span<const Unknown> unknowns,
              const std::function<std::size_t(const OptionValues& form)>& misfits) {
  FormSearch search{misfits};
  const bool fits = search.run(form, unknowns);
  if (search.best) form = std::move(*search.best);
  return fits;
}

}  // namespace reshard
