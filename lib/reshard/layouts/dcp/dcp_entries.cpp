#include "reshard/layouts/dcp/dcp_entries.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/names/packed_experts.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/layouts/rules/packing.h"

namespace reshard {
namespace {

/// Where a tensor is written: the entry's name, and the tensor's place in a packed entry.
struct DcpEntryPlace {
  std::string name;
  WrittenNames::Place packed;  // `entry` is null if the tensor is not packed
};

/// \param read      The entry as a reader finds it.
/// \param expected  The entry's first tensor.
/// \throws Error kUsage if the reader would take the entry for another tensor.
void validate_read_as(const DcpEntry& entry, const NamedEntry& read, const std::string& expected,
                      const std::string& prefix) {
  const PackedNames* const packed = read.packed.get();
  std::string name = read.name;
  if (packed != nullptr) name = with_numbers(name, std::vector<std::string>(packed->rule->numbered_dims().size(), "0"));
  const SchemeEntry* const rule = entry.packed == nullptr ? nullptr : entry.packed->rule;
  if (name == expected && rule == (packed == nullptr ? nullptr : packed->rule)) return;
  const std::string given = prefix.empty() ? "" : "`prefix` " + printable(prefix) + ": ";
  throw Error(ErrorKind::kUsage, fmt::format("{}{} would be read {}", given, printable(entry.name),
                                             name.empty() ? "as an entry outside the model, such as an optimizer's"
                                             : name == expected ? "with its elements in another order"
                                                                : fmt::format("under the name {}", printable(name))))
      .tensor(expected)
      .hint(std::string(prefix == "model." ? ""
                        : prefix.empty()   ? "choose a `prefix`, such as model, or "
                                           : "choose another prefix, such as model, or ") +
            "rename the tensors with `rename` so that their names begin as the model's do, or leave them out with "
            "`drop`");
}

/// The names of parameters' entries: the model's own, or another program's, under a prefix.
class DcpNames {
 public:
  /// \throws Error kUsage if another program's names are written without a model; as WrittenNames.
  DcpNames(const Model* model, const DcpCut& cut) : model_(model), cut_(cut) {
    if (cut.names.empty()) return;
    if (model == nullptr)
      throw Error(ErrorKind::kUsage, "`names`: the model that they apply to is unknown")
          .hint(
              "give the model's config.json (`config`), with `family` if its model_type is unknown, or leave out "
              "`names`");
    written_ = std::make_shared<const WrittenNames>(*model, cut.names);
  }

  /// The names of the other program; null if the model's own are written.
  const std::shared_ptr<const WrittenNames>& written() const { return written_; }

  /// Whether the program has a name for a parameter.
  bool has(std::string_view parameter) const {
    return written_ == nullptr || written_->find(parameter).entry != nullptr;
  }

  /// Returns the entry and place of a parameter; its own name if no other program's names are written.
  DcpEntryPlace of(const std::string& parameter) const {
    DcpEntryPlace place = without_prefix(parameter);
    place.name.insert(0, cut_.prefix);
    return place;
  }

  /// Returns the same without the prefix, as states refer to the parameter.
  DcpEntryPlace without_prefix(const std::string& parameter) const {
    if (written_ == nullptr || parameter.empty()) return {parameter, {}};
    const WrittenNames::Place place = written_->of(parameter);
    const bool is_alone = place.entry == nullptr || place.entry->rule->is_plain();
    const bool keeps_name = place.entry == nullptr || place.entry->name == parameter;
    if (is_alone && keeps_name && PackedExperts::is_of_expert(parameter) && written_->packs_experts())
      throw Error(ErrorKind::kUnsupported, "has no place in packed experts, which contain only weights")
          .tensor(parameter)
          .hint("leave it out with `drop`, or keep the model's own names");
    if (is_alone) return {place.entry == nullptr ? parameter : place.entry->name, {}};
    return {place.entry->name, place};
  }

  /// Returns the path of a model's entry: one dictionary per part of the prefix, then the name.
  DcpPath path_of(const std::string& entry) const {
    DcpPath path;
    if (!cut_.prefix.empty())
      for (std::string& part : split(cut_.prefix.substr(0, cut_.prefix.size() - 1), '.'))
        path.emplace_back(std::move(part));
    path.emplace_back(entry.substr(cut_.prefix.size()));
    return path;
  }

  bool are_states_first() const { return written_ != nullptr && !written_->before_state().empty(); }

  /// Changes the name of a parameter's entry to that of its state, with the state first.
  /// \returns the path of the state's entry.
  DcpPath put_state_first(std::string_view state, DcpEntryPlace& place) const {
    place.name = fmt::format("{}{}.{}", written_->before_state(), state, place.name);
    return {place.name};
  }

  /// Validates that a reader with the model's config.json maps the entries back to their tensors. Names of an unknown
  /// family may keep the prefix.
  /// \param of_model  Number of the model's entries, which come first.
  /// \returns DcpEntryList::keeps_prefix.
  /// \throws Error kUsage if one of these would be read under another name.
  bool validate_read_back(std::span<const DcpEntry> entries, std::size_t of_model,
                          std::span<const DcpGroupObject> objects, std::span<const LogicalTensor> logical) const {
    std::vector<std::string> tensors, others;
    for (const DcpEntry& entry : entries) (entry.is_object ? others : tensors).push_back(entry.name);
    for (const DcpGroupObject& object : objects) others.push_back(object.name);
    std::shared_ptr<const Family> family;
    KnownModel known(nullptr);
    if (model_ != nullptr) {
      // A reader does not know a family that was derived from the tensors of this checkpoint.
      family = model_->renamed ? builtin_family(model_->family->model_type) : model_->family;
      if (!model_->by_config_plan) known = {family.get(), model_->is_part};
      known.config = model_->config;
    }
    const StateNames found = find_state_names(tensors, known, others);
    const bool is_unknown = !found.fits && !cut_.prefix.empty();
    bool keeps_prefix = false;
    for (std::size_t e = 0; e < of_model; ++e) {
      const DcpEntry& entry = entries[e];
      if (is_unknown && found.entries[e].name == entry.name)
        keeps_prefix = true;
      else
        validate_read_as(entry, found.entries[e],
                         entry.packed == nullptr ? logical[entry.first].name : entry.packed->tensors.front(),
                         cut_.prefix);
    }
    return keeps_prefix;
  }

 private:
  const Model* model_;  // may be null
  const DcpCut& cut_;
  std::shared_ptr<const WrittenNames> written_;
};

constexpr std::uint32_t kMissing = UINT32_MAX;

/// Enlarges the rows of an entry to the scheme's multiple.
/// \throws Error kUnsupported if the entry contains several tensors.
void pad(DcpEntry& entry, const SchemeEntry& rule, std::uint32_t tp) {
  if (!entry.packing.is_plain())
    throw Error(ErrorKind::kUnsupported,
                fmt::format("has padding of several tensors ({}), which can be read but not written", rule.where))
        .hint("keep the model's own names");
  const Expression::Lookup ranks = [&](const std::string&) { return ConfigValue(std::uint64_t{tp}); };
  const std::uint64_t multiple = rule.multiple_of.size(ranks);
  const auto dim = std::find(rule.entry_dims.begin(), rule.entry_dims.end(), std::vector<std::string>{rule.joined});
  std::uint64_t& rows = entry.shape[static_cast<std::size_t>(dim - rule.entry_dims.begin())];
  rows += (multiple - rows % multiple) % multiple;
}

/// Adds another tensor to a packed entry.
/// \param first  A tensor that the entry contains.
/// \throws Error kUnsupported if the dtype differs from that of `first`, or the shape from the model's.
void add_to_entry(DcpEntry& entry, const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place,
                  const LogicalTensor& first) {
  const WrittenNames::Entry& packed = *place.packed.entry;
  const Dims& shape = packed.parts[place.packed.tensor % packed.parts.size()];
  if (tensor.shape != shape)
    throw Error(ErrorKind::kUnsupported, fmt::format("has the shape {}, expected {} in {}", to_string(tensor.shape),
                                                     to_string(shape), printable(entry.name)))
        .tensor(tensor.name)
        .hint("config.json belongs to another model");
  if (tensor.dtype != entry.dtype)
    throw Error(ErrorKind::kUnsupported,
                fmt::format("is {}, but {}, which is in the same entry {}, is {}", name(tensor.dtype),
                            printable(first.name), printable(entry.name), name(entry.dtype)))
        .tensor(tensor.name)
        .hint("convert all of them to one dtype");
  entry.logical.at(place.packed.tensor) = index;
}

/// Returns the entry that contains logical tensor `index`, of a checkpoint for `tp` tensor-parallel ranks.
/// \throws Error as pack.
DcpEntry dcp_entry(const LogicalTensor& tensor, std::uint32_t index, const DcpEntryPlace& place, const Model* model,
                   std::uint32_t tp) {
  DcpEntry entry{
      place.name, tensor.dtype, tensor.shape, tensor.shape, {index}, index, {}, {}, tensor.role == TensorRole::kObject};
  if (place.packed.entry == nullptr) return entry;
  try {
    const WrittenNames::Entry& packed = *place.packed.entry;
    entry.packed = &packed;
    PackedArray array = pack(*packed.rule, packed.parts, packed.numbers, *model);
    if (!array.packing.has_boxes())
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("is stored permuted in {} ({}); this order can be read but not written",
                              printable(place.name), packed.rule->where))
          .hint("keep the model's own names");
    entry.shape = entry.unpadded = std::move(array.shape);
    if (!array.packing.is_identity()) entry.packing = std::move(array.packing);
    if (packed.rule->multiple_of) pad(entry, *packed.rule, tp);
    entry.logical.assign(packed.tensors.size(), kMissing);
  } catch (Error& error) {
    throw error.tensor(tensor.name);
  }
  add_to_entry(entry, tensor, index, place, tensor);
  return entry;
}

/// Validates that a packed entry has all of its tensors.
/// \throws Error kBadInput.
void validate_complete(const DcpEntry& entry) {
  const auto missing = std::find(entry.logical.begin(), entry.logical.end(), kMissing);
  if (missing == entry.logical.end()) return;
  const std::string& tensor = entry.packed->tensors[static_cast<std::size_t>(missing - entry.logical.begin())];
  throw Error(ErrorKind::kBadInput,
              fmt::format("contains {} tensors, but {} is missing", entry.logical.size(), printable(tensor)))
      .tensor(entry.name)
      .hint("the checkpoint is incomplete, or config.json belongs to another model");
}

/// A state that the entry stores once for all of its tensors, such as the step count.
struct StateOfEntry {
  const LogicalTensor* first = nullptr;
  const WrittenNames::Entry* packed = nullptr;
  std::vector<bool> tensors;  // whether each tensor has the state
};

/// \throws Error kUnsupported if only some tensors of an entry have the state.
void validate_of_all(const std::string& entry, const StateOfEntry& of) {
  const auto missing = std::find(of.tensors.begin(), of.tensors.end(), false);
  if (missing == of.tensors.end()) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("{} has none, but all {} parameters of {} must have it",
                          printable(of.packed->tensors[static_cast<std::size_t>(missing - of.tensors.begin())]),
                          of.tensors.size(), printable(entry)))
      .tensor(of.first->name)
      .hint("leave out `names` or `with-optimizer`");
}

/// \throws Error kUnsupported if two tensors of a packed entry, which has the number once, have different ones.
void validate_same_number(const StateNumber& number, const StateNumber& first, const std::string& entry) {
  if (number.value == first.value) return;
  throw Error(
      ErrorKind::kUnsupported,
      fmt::format("its state {} is {}, and that of {} is {}, but {} can have only one of them", printable(number.state),
                  to_string(number.value), printable(first.parameter), to_string(first.value), printable(entry)))
      .tensor(number.parameter)
      .hint("leave out `names` or `with-optimizer`");
}

/// \throws Error kUnsupported for a state of several elements that would have to be reordered with its parameter.
void validate_needs_no_order(const LogicalTensor& tensor, const DcpEntryPlace& place) {
  const bool is_ordered = tensor.role == TensorRole::kState && num_elems(tensor.shape) != 1u;
  if (!is_ordered || place.packed.entry == nullptr) return;
  throw Error(ErrorKind::kUnsupported,
              fmt::format("has another shape than its parameter, so it cannot be packed into {} with it",
                          printable(place.name)))
      .tensor(tensor.name)
      .hint("leave out `names` or `with-optimizer`");
}

/// \throws Error kUnsupported for an object that lists parameters by names that change.
void validate_no_lists(const TrainingStates& states) {
  for (std::size_t i = 0; i < states.of.size(); ++i) {
    const LogicalTensor& tensor = states.map.logical[i];
    if (tensor.role == TensorRole::kObject && states.of[i].parameter.empty() && lists_parameters(tensor.name))
      throw Error(ErrorKind::kUnsupported, "lists parameters by name, and `names` changes names")
          .tensor(tensor.name)
          .hint("leave out `names`, or save it with flatten_optimizer_state_dict=True");
  }
}

/// Lists the entries of the model, of its training state and of second names.
class DcpLister {
 public:
  DcpLister(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model, const DcpCut& cut)
      : logical_(logical), states_(states), model_(model), cut_(cut), names_(model, cut) {
    for (const LogicalTensor& tensor : logical) logical_called_.emplace(tensor.name, &tensor);
    if (model == nullptr) return;
    for (const ModelParameter& parameter : model->parameters) parameters_.emplace(parameter.name, &parameter);
  }

  DcpEntryList run() {
    list_.map.reserve_logical(logical_.size() + (states_ != nullptr ? states_->of.size() : 0));
    for (const LogicalTensor& tensor : logical_) {
      const DcpEntryPlace place = names_.of(tensor.name);
      add_entry(changed(tensor, place), place, names_.path_of(place.name),
                tensor_parallel_dim(tensor.name, tensor.shape));
    }
    const std::size_t of_model = list_.entries.size();
    if (states_ != nullptr) {
      add_states();
      for (const StateNumber& number : states_->numbers) add_number(number);
      list_.objects = dcp_group_objects(
          states_->groups, [&](const std::string& parameter) { return names_.without_prefix(parameter).name; },
          names_.written() != nullptr);
    }
    for (const DcpEntry& entry : list_.entries) validate_complete(entry);
    list_.keeps_prefix = names_.validate_read_back(list_.entries, of_model, list_.objects, list_.map.logical);
    add_second_names();
    list_.names = names_.written();
    return std::move(list_);
  }

 private:
  /// Returns the tensor that the entry at `place` has instead of the parameter `tensor`.
  LogicalTensor changed(const LogicalTensor& tensor, const DcpEntryPlace& place) {
    if (place.packed.entry == nullptr || place.packed.entry->rule->changes.empty()) return tensor;
    const auto& changes = place.packed.entry->rule->changes;
    const ValueChange& values = changes[place.packed.tensor % changes.size()].values;
    list_.rounded.insert(with_stars(values.name_of(tensor.name)));
    return changed_tensor(tensor, values.name_of(tensor.name), values);
  }

  /// \param path  Path of the entry at `place`.
  void add_entry(const LogicalTensor& tensor, const DcpEntryPlace& place, DcpPath path,
                 std::optional<std::size_t> tp_dim) {
    const auto t = static_cast<std::uint32_t>(list_.map.logical.size());
    const bool is_new_tensor = list_.map.add_logical(tensor, {}) == t;
    const auto [known, is_new] = entry_of_.emplace(place.name, static_cast<std::uint32_t>(list_.entries.size()));
    const WrittenNames::Entry* const packed = place.packed.entry;
    const bool is_in_entry = !is_new && packed != nullptr && list_.entries[known->second].packed == packed;
    if (!is_new_tensor || (!is_new && !is_in_entry))
      throw Error(ErrorKind::kUsage,
                  "the model and other training state would both have an entry " + printable(place.name))
          .tensor(tensor.name)
          .hint("choose another `prefix`");
    if (is_in_entry) {
      DcpEntry& entry = list_.entries[known->second];
      return add_to_entry(entry, tensor, t, place, list_.map.logical[entry.first]);
    }
    DcpEntry& entry = list_.entries.emplace_back(dcp_entry(tensor, t, place, model_, cut_.tp));
    entry.path = std::move(path);
    if (tp_dim)
      entry.tp_dim = entry.packing.is_plain() ? *tp_dim : entry.packing.parts.front().dims[*tp_dim].front().dim;
  }

  std::optional<std::size_t> tensor_parallel_dim(const std::string& parameter, const Dims& shape) const {
    if (cut_.tp == 1) return std::nullopt;
    const auto found = parameters_.find(parameter);
    if (found == parameters_.end()) return std::nullopt;
    const std::optional<std::uint32_t> dim = found->second->split_dim;
    return dim && *dim < shape.size() ? std::optional<std::size_t>(*dim) : std::nullopt;
  }

  /// Names, orders and splits each state like its parameter if their shapes are equal.
  void add_states() {
    for (std::size_t i = 0; i < states_->of.size(); ++i) {
      if (states_->of[i].left_out || states_->map.logical[i].constant() || is_master(*states_, i)) continue;
      const LogicalTensor& tensor = states_->map.logical[i];
      const std::string& parameter = states_->of[i].parameter;
      DcpEntryPlace place = names_.without_prefix(parameter);
      const auto own = logical_called_.find(parameter);
      const bool is_alike =
          tensor.role == TensorRole::kState && own != logical_called_.end() && own->second->shape == tensor.shape;
      if (!is_alike) validate_needs_no_order(tensor, place);
      const bool is_changed = place.packed.entry != nullptr && !place.packed.entry->rule->changes.empty();
      if (is_alike && is_changed && !is_moment(states_->state(i)))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("is a state of a parameter whose values {} changes", cut_.names))
            .tensor(tensor.name)
            .hint("leave out `names` or `with-optimizer`");
      const auto tp_dim = is_alike ? tensor_parallel_dim(parameter, tensor.shape) : std::nullopt;
      DcpPath path = nested_or_flat(states_->path_with(i, place.name));
      if (names_.are_states_first() && !parameter.empty() && !is_of_group(tensor.name))
        path = names_.put_state_first(states_->of[i].state, place);
      else
        place.name = parameter.empty() ? tensor.name : states_->of[i].name_with(place.name);
      if (!is_alike && place.packed.entry != nullptr && !is_first_of_entry(tensor, place)) continue;
      if (!is_alike) place.packed = {};
      add_entry(tensor, place, std::move(path), tp_dim);
    }
    for (const auto& [entry, of_entry] : states_of_entries_) validate_of_all(entry, of_entry);
    if (names_.written() != nullptr) validate_no_lists(*states_);
  }

  /// Records that a tensor of a packed entry has a state, which must be the same for all of them (TargetMap::same).
  /// \returns whether it is the first.
  /// \throws Error kUnsupported if it has another dtype or shape than the first.
  bool is_first_of_entry(const LogicalTensor& tensor, const DcpEntryPlace& place) {
    StateOfEntry& of = states_of_entries_[place.name];
    of.packed = place.packed.entry;
    of.tensors.resize(of.packed->tensors.size());
    of.tensors.at(place.packed.tensor) = true;
    if (of.first == nullptr) {
      of.first = &tensor;
      return true;
    }
    if (tensor.dtype != of.first->dtype || tensor.shape != of.first->shape)
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("is {} {}, and {} is {} {}, but {} can have only one of them", name(tensor.dtype),
                              to_string(tensor.shape), printable(of.first->name), name(of.first->dtype),
                              to_string(of.first->shape), printable(place.name)))
          .tensor(tensor.name)
          .hint("leave out `names` or `with-optimizer`");
    list_.map.same.emplace_back(tensor.name, of.first->name);
    return false;
  }

  /// The step of an optimizer that counts in Python: torch's own have a float32 tensor.
  void add_number(const StateNumber& number) {
    const auto* const whole = std::get_if<std::int64_t>(&number.value.value);
    const auto* const real = std::get_if<double>(&number.value.value);
    if (whole == nullptr && real == nullptr)
      throw Error(ErrorKind::kUnsupported, fmt::format("its state {} is {}, which no torch optimizer has",
                                                       printable(number.state), to_string(number.value)))
          .tensor(number.parameter)
          .hint("leave out `with-optimizer`");
    const float value = whole != nullptr ? static_cast<float>(*whole) : static_cast<float>(*real);
    if (whole != nullptr && static_cast<double>(value) != static_cast<double>(*whole))
      throw Error(ErrorKind::kUnsupported,
                  fmt::format("its state {} is {}, which float32, the dtype of torch's state, cannot represent",
                              printable(number.state), *whole))
          .tensor(number.parameter)
          .hint("leave out `with-optimizer`");
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    auto recipe = std::make_shared<const Constant>(Constant::Kind::kRequired, DType::kF32, bits);
    DcpEntryPlace place = names_.without_prefix(number.parameter);
    const LogicalTensor tensor{optimizer_state_name(number.parameter, number.state),
                               DType::kF32,
                               {},
                               std::make_shared<const Computed>(Computed{std::move(recipe), {}}),
                               TensorRole::kState};
    DcpPath path = nested_or_flat({"optimizer", "state", place.name, number.state});
    place.packed = {};
    if (names_.are_states_first())
      path = names_.put_state_first(number.state, place);
    else
      place.name = optimizer_state_name(place.name, number.state);
    const auto [known, is_new] = numbers_.emplace(place.name, &number);
    if (!is_new) return validate_same_number(number, *known->second, place.name);
    add_entry(tensor, place, std::move(path), std::nullopt);
  }

  /// Programs with names of their own save optimizers without nesting.
  DcpPath nested_or_flat(DcpPath path) const {
    if (names_.written() == nullptr || states_->groups.empty() || path.size() < 3) return path;
    std::string rest;
    for (std::size_t i = 1; i < path.size(); ++i)
      if (const auto* const text = std::get_if<std::string>(&path[i])) rest += (rest.empty() ? "" : ".") + *text;
    return {path.front(), std::move(rest)};
  }

  /// Adds the second name of each tied parameter. A model in training has both names, and torch requires both.
  void add_second_names() {
    std::vector<std::pair<std::string, std::string>> tied;
    for (const auto& [name, parameter] : parameters_)
      if (!parameter->tied_to.empty() && logical_called_.count(name) == 0 &&
          logical_called_.count(parameter->tied_to) > 0 && names_.has(parameter->name))
        tied.emplace_back(name, parameter->tied_to);
    std::sort(tied.begin(), tied.end());
    for (const auto& [name, to] : tied) {
      const DcpEntryPlace place = names_.of(name);
      const std::uint32_t source = entry_of_.at(names_.of(to).name);
      validate_same_order(name, place, list_.entries[source]);
      list_.second_names.push_back({place.name, names_.path_of(place.name), source});
    }
  }

  /// \throws Error kUnsupported if parameter `name`, which is tied to the contents of `source`, would be packed
  /// differently.
  void validate_same_order(const std::string& name, const DcpEntryPlace& place, const DcpEntry& source) const {
    const LogicalTensor& tensor = list_.map.logical[source.first];
    const DcpEntry own = dcp_entry({name, tensor.dtype, tensor.shape, {}}, source.first, place, model_, cut_.tp);
    const auto is_changed = [](const WrittenNames::Entry* entry) {
      return entry != nullptr && !entry->rule->changes.empty();
    };
    if (own.shape == source.shape && own.logical.size() == 1 && own.packing == source.packing &&
        !is_changed(own.packed) && !is_changed(source.packed))
      return;
    throw Error(ErrorKind::kUnsupported, fmt::format("is tied to a tensor in {}, but would be stored differently in {}",
                                                     printable(source.name), printable(place.name)))
        .tensor(name)
        .hint("keep the model's own names");
  }

  std::span<const LogicalTensor> logical_;
  const TrainingStates* states_;  // may be null
  const Model* model_;            // may be null
  const DcpCut& cut_;
  const DcpNames names_;
  std::unordered_map<std::string_view, const LogicalTensor*> logical_called_;  // keyed by name
  std::unordered_map<std::string_view, const ModelParameter*> parameters_;     // keyed by name
  std::unordered_map<std::string, std::uint32_t> entry_of_;  // indices into DcpEntryList::entries, keyed by name
  std::map<std::string, StateOfEntry> states_of_entries_;    // keyed by entry name
  std::map<std::string, const StateNumber*> numbers_;  // keyed by entry name; for packed entries, the first tensor's
  DcpEntryList list_;
};

}  // namespace

DcpEntryList list_dcp_entries(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model,
                              const DcpCut& cut) {
  return DcpLister(logical, states, model, cut).run();
}

}  // namespace reshard
