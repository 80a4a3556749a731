#include "reshard/layouts/dcp/dcp_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/dcp/dcp_plan.h"
#include "reshard/layouts/dcp/dcp_entries.h"
#include "reshard/layouts/dcp/dcp_groups.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/names/optimizer_entries.h"
#include "reshard/layouts/names/packed_experts.h"
#include "reshard/layouts/names/state_names.h"
#include "reshard/layouts/names/written_names.h"
#include "reshard/layouts/rules/packing.h"

namespace reshard {
namespace {

/// Returns part `index` of `parts` of a dim as [first, second).
std::pair<std::uint64_t, std::uint64_t> part_of_dim(std::uint64_t size, std::uint32_t parts, std::uint32_t index) {
  const std::uint64_t each = (size + parts - 1) / parts;
  return {std::min(size, each * index), std::min(size, each * (index + std::uint64_t{1}))};
}

void cut_dim(Box& box, std::size_t dim, std::uint32_t parts, std::uint32_t index) {
  const auto [begin, end] = part_of_dim(box.size[dim], parts, index);
  box.begin[dim] += begin;
  box.size[dim] = end - begin;
}

/// The part of an entry that a rank writes. One list contains all chunks, which may be hundreds of thousands.
struct RankChunk {
  std::uint32_t rank;
  std::uint32_t number;  // in the order of entries
  std::uint32_t entry;
  Box box;
};

class Cutter {
 public:
  Cutter(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model, const DcpCut& cut)
      : logical_(logical), states_(states), cut_(cut), rank_bytes_(std::size_t{cut.fsdp} * cut.tp) {
    if (cut.tp > 1 && model == nullptr)
      throw Error(ErrorKind::kUsage, "`tp`: the dims that tensor-parallel ranks split are unknown")
          .hint(
              "give the model's config.json (`config`), with `family` or `spec` if its model_type is unknown, or leave "
              "out `tp`: torch loads the checkpoint into any mesh");
    if (!cut.names.empty() && model == nullptr)
      throw Error(ErrorKind::kUsage, "`names`: the model that they apply to is unknown")
          .hint(
              "give the model's config.json (`config`), with `family` if its model_type is unknown, or leave out "
              "`names`");
    if (!cut.names.empty()) names_.emplace(*model, cut.names);
    if (model == nullptr) return;
    // A reader does not know a family that was derived from the tensors of this checkpoint.
    if (model->renamed) builtin_ = builtin_family(model->family->model_type);
    if (!model->by_config_plan) known_ = {model->renamed ? builtin_.get() : model->family.get(), model->is_part};
    known_.config = model->config;
    model_ = model;
    for (const ModelParameter& parameter : model->parameters) parameters_.emplace(parameter.name, &parameter);
  }

  TargetMap run() {
    map_.reserve_logical(logical_.size() + (states_ != nullptr ? states_->of.size() : 0));
    for (const LogicalTensor& tensor : logical_) {
      const DcpEntryPlace place = place_of(tensor.name);
      add_entry(changed(tensor, place), place, path_of(place.name), tensor_parallel_dim(tensor.name, tensor.shape));
    }
    const std::size_t of_model = entries_.size();
    if (states_ != nullptr) {
      add_states();
      for (const StateNumber& number : states_->numbers) add_number(number);
      add_groups();
    }
    for (const DcpEntry& entry : entries_) validate_complete(entry);
    validate_read_back(of_model);
    for (std::uint32_t e = 0; e < entries_.size(); ++e) {
      metadata_.tensors.push_back({entries_[e].name, {}, entries_[e].dtype, entries_[e].shape, {}});
      const std::size_t before = chunks_.size();
      add_chunks(e);
      metadata_.tensors[e].chunks.reserve(chunks_.size() - before);
      reserve_pieces(map_, entries_[e], chunks_.size() - before);
    }
    add_files();
    set_objects_apart();
    add_tied();
    map_.text_files.push_back({kDcpMetadataFile, dcp_metadata_file(metadata_), {}, true});
    return std::move(map_);
  }

  /// Whether readers will keep the prefix in the model's names because the family is unknown.
  /// Names of the sums among the tensors that are rounded, with stars for numbers.
  const std::set<std::string>& rounded() const { return rounded_; }
  bool keeps_prefix() const { return keeps_prefix_; }

 private:
  /// Returns the entry and place of a parameter; its own name if no other program's names are written.
  DcpEntryPlace place_of(const std::string& parameter) const {
    DcpEntryPlace place = program_place_of(parameter);
    place.name.insert(0, cut_.prefix);
    return place;
  }

  /// Returns the tensor that the entry at `place` has instead of the parameter `tensor`.
  LogicalTensor changed(const LogicalTensor& tensor, const DcpEntryPlace& place) {
    if (place.packed.entry == nullptr || place.packed.entry->rule->changes.empty()) return tensor;
    const auto& changes = place.packed.entry->rule->changes;
    const ValueChange& values = changes[place.packed.tensor % changes.size()].values;
    if (bits(tensor.dtype) < bits(DType::kF32)) rounded_.insert(with_stars(values.name_of(tensor.name)));
    return changed_tensor(tensor, values.name_of(tensor.name), values);
  }

  /// Returns the same without the prefix.
  DcpEntryPlace program_place_of(const std::string& parameter) const {
    if (!names_ || parameter.empty()) return {parameter, {}};
    const WrittenNames::Place place = names_->of(parameter);
    const bool is_alone = place.entry == nullptr || place.entry->rule->is_plain();
    const bool keeps_name = place.entry == nullptr || place.entry->name == parameter;
    if (is_alone && keeps_name && PackedExperts::is_of_expert(parameter) && names_->packs_experts())
      throw Error(ErrorKind::kUnsupported, "has no place in packed experts, which contain only weights")
          .tensor(parameter)
          .hint("leave it out with `drop`, or keep the model's own names");
    if (is_alone) return {place.entry == nullptr ? parameter : place.entry->name, {}};
    return {place.entry->name, place};
  }

  /// \param path  Path of the entry at `place`.
  void add_entry(const LogicalTensor& tensor, const DcpEntryPlace& place, DcpPath path,
                 std::optional<std::size_t> tp_dim) {
    const auto t = static_cast<std::uint32_t>(map_.logical.size());
    const bool is_new_tensor = map_.add_logical(tensor, {}) == t;
    const auto [known, is_new] = entry_of_.emplace(place.name, static_cast<std::uint32_t>(entries_.size()));
    const WrittenNames::Entry* const packed = place.packed.entry;
    const bool is_in_entry = !is_new && packed != nullptr && entries_[known->second].packed == packed;
    if (!is_new_tensor || (!is_new && !is_in_entry))
      throw Error(ErrorKind::kUsage,
                  "the model and other training state would both have an entry " + printable(place.name))
          .tensor(tensor.name)
          .hint("choose another `prefix`");
    if (is_in_entry) {
      DcpEntry& entry = entries_[known->second];
      return add_to_entry(entry, tensor, t, place, map_.logical[entry.first]);
    }
    entries_.push_back(dcp_entry(tensor, t, place, model_, cut_.tp));
    const Packing& packing = entries_.back().packing;
    if (tp_dim) entries_.back().tp_dim = packing.is_plain() ? *tp_dim : packing.parts.front().dims[*tp_dim].front().dim;
    metadata_.paths.emplace_back(place.name, std::move(path));
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
    std::unordered_map<std::string_view, const Dims*> shapes;
    for (const LogicalTensor& tensor : logical_) shapes.emplace(tensor.name, &tensor.shape);
    for (std::size_t i = 0; i < states_->of.size(); ++i) {
      if (states_->of[i].left_out || states_->map.logical[i].constant() || is_master(*states_, i)) continue;
      const LogicalTensor& tensor = states_->map.logical[i];
      const std::string& parameter = states_->of[i].parameter;
      DcpEntryPlace place = program_place_of(parameter);
      const auto shape = shapes.find(parameter);
      const bool is_alike =
          tensor.role == TensorRole::kState && shape != shapes.end() && *shape->second == tensor.shape;
      if (!is_alike) validate_needs_no_order(tensor, place);
      const bool is_changed = place.packed.entry != nullptr && !place.packed.entry->rule->changes.empty();
      if (is_alike && is_changed && !is_moment(states_->state(i)))
        throw Error(ErrorKind::kUnsupported,
                    fmt::format("is a state of a parameter whose values {} changes", cut_.names))
            .tensor(tensor.name)
            .hint("leave out `names` or `with-optimizer`");
      const auto tp_dim = is_alike ? tensor_parallel_dim(parameter, tensor.shape) : std::nullopt;
      DcpPath path = nested_or_flat(states_->path_with(i, place.name));
      if (is_state_first() && !parameter.empty() && !is_of_group(tensor.name))
        path = put_behind(states_->of[i].state, place);
      else
        place.name = parameter.empty() ? tensor.name : states_->of[i].name_with(place.name);
      if (!is_alike && place.packed.entry != nullptr && !is_first_of_entry(tensor, place)) continue;
      if (!is_alike) place.packed = {};
      add_entry(tensor, place, std::move(path), tp_dim);
    }
    for (const auto& [entry, of_entry] : of_entries_) validate_of_all(entry, of_entry);
    if (names_) validate_no_lists();
  }

  /// A state that the entry stores once for all of its tensors, such as the step count.
  struct OfEntry {
    const LogicalTensor* first = nullptr;
    const WrittenNames::Entry* packed = nullptr;
    std::vector<bool> tensors;  // whether each tensor has the state
  };

  /// Notes what `tensor` is of its entry. Those after the first are to be the same.
  /// \throws Error kUnsupported if it has another dtype or shape than the first.
  bool is_first_of_entry(const LogicalTensor& tensor, const DcpEntryPlace& place) {
    OfEntry& of = of_entries_[place.name];
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
    map_.same.emplace_back(tensor.name, of.first->name);
    return false;
  }

  /// \throws Error kUnsupported if only some tensors of an entry have the state.
  static void validate_of_all(const std::string& entry, const OfEntry& of) {
    const auto missing = std::find(of.tensors.begin(), of.tensors.end(), false);
    if (missing == of.tensors.end()) return;
    throw Error(ErrorKind::kUnsupported,
                fmt::format("{} has none, but all {} parameters of {} must have it",
                            printable(of.packed->tensors[static_cast<std::size_t>(missing - of.tensors.begin())]),
                            of.tensors.size(), printable(entry)))
        .tensor(of.first->name)
        .hint("leave out `names` or `with-optimizer`");
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
    DcpEntryPlace place = program_place_of(number.parameter);
    const LogicalTensor tensor{optimizer_state_name(number.parameter, number.state),
                               DType::kF32,
                               {},
                               std::make_shared<const Computed>(Computed{std::move(recipe), {}}),
                               TensorRole::kState};
    DcpPath path = nested_or_flat({"optimizer", "state", place.name, number.state});
    place.packed = {};
    if (is_state_first())
      path = put_behind(number.state, place);
    else
      place.name = optimizer_state_name(place.name, number.state);
    const auto [known, is_new] = numbers_.emplace(place.name, &number);
    if (!is_new) return validate_same_number(number, *known->second, place.name);
    add_entry(tensor, place, std::move(path), std::nullopt);
  }

  /// \throws Error kUnsupported if two tensors of a packed entry, which has the number once, have different ones.
  static void validate_same_number(const StateNumber& number, const StateNumber& first, const std::string& entry) {
    if (number.value == first.value) return;
    throw Error(ErrorKind::kUnsupported,
                fmt::format("its state {} is {}, and that of {} is {}, but {} can have only one of them",
                            printable(number.state), to_string(number.value), printable(first.parameter),
                            to_string(first.value), printable(entry)))
        .tensor(number.parameter)
        .hint("leave out `names` or `with-optimizer`");
  }

  bool is_state_first() const { return names_ && !names_->before_state().empty(); }

  /// Changes the name of a parameter's entry to that of its state, with the state first.
  /// \returns the path of the state's entry.
  DcpPath put_behind(std::string_view state, DcpEntryPlace& place) const {
    place.name = fmt::format("{}{}.{}", names_->before_state(), state, place.name);
    return {place.name};
  }

  /// Adds the groups that were read as values.
  void add_groups() {
    objects_ = dcp_group_objects(
        states_->groups, [&](const std::string& parameter) { return program_place_of(parameter).name; },
        names_.has_value());
  }

  /// Programs with names of their own save optimizers without nesting.
  DcpPath nested_or_flat(DcpPath path) const {
    if (!names_ || states_->groups.empty() || path.size() < 3) return path;
    std::string rest;
    for (std::size_t i = 1; i < path.size(); ++i)
      if (const auto* const text = std::get_if<std::string>(&path[i])) rest += (rest.empty() ? "" : ".") + *text;
    return {path.front(), std::move(rest)};
  }

  /// \throws Error kUnsupported for a state of several elements that would have to be reordered with its parameter.
  static void validate_needs_no_order(const LogicalTensor& tensor, const DcpEntryPlace& place) {
    const bool is_ordered = tensor.role == TensorRole::kState && num_elems(tensor.shape) != 1u;
    if (!is_ordered || place.packed.entry == nullptr) return;
    throw Error(ErrorKind::kUnsupported,
                fmt::format("has another shape than its parameter, so it cannot be packed into {} with it",
                            printable(place.name)))
        .tensor(tensor.name)
        .hint("leave out `names` or `with-optimizer`");
  }

  /// \throws Error kUnsupported for an object that lists parameters by names that change.
  void validate_no_lists() const {
    for (std::size_t i = 0; i < states_->of.size(); ++i) {
      const LogicalTensor& tensor = states_->map.logical[i];
      if (tensor.role == TensorRole::kObject && states_->of[i].parameter.empty() && lists_parameters(tensor.name))
        throw Error(ErrorKind::kUnsupported, "lists parameters by name, and `names` changes names")
            .tensor(tensor.name)
            .hint("leave out `names`, or save it with flatten_optimizer_state_dict=True");
    }
  }

  /// Validates that a reader with the model's config.json maps the entries back to their tensors. Names of an unknown
  /// family may keep the prefix.
  /// \param of_model  Number of the model's entries, which come first.
  /// \throws Error kUsage if one of these would be read under another name.
  void validate_read_back(std::size_t of_model) {
    std::vector<std::string> tensors, objects;
    for (const DcpEntry& entry : entries_) (entry.is_object ? objects : tensors).push_back(entry.name);
    for (const DcpGroupObject& object : objects_) objects.push_back(object.name);
    const StateNames found = find_state_names(tensors, known_, objects);
    const bool is_unknown = !found.fits && !cut_.prefix.empty();
    for (std::size_t e = 0; e < of_model; ++e)
      if (is_unknown && found.entries[e].name == entries_[e].name)
        keeps_prefix_ = true;
      else
        validate_read_back(entries_[e], found.entries[e]);
  }

  /// \param read  The entry as a reader finds it.
  void validate_read_back(const DcpEntry& entry, const NamedEntry& read) const {
    const PackedNames* const packed = read.packed.get();
    std::string name = read.name;
    if (packed != nullptr)
      name = with_numbers(name, std::vector<std::string>(packed->rule->numbered_dims().size(), "0"));
    const std::string& expected =
        entry.packed == nullptr ? map_.logical[entry.first].name : entry.packed->tensors.front();
    const SchemeEntry* const rule = entry.packed == nullptr ? nullptr : entry.packed->rule;
    if (name == expected && rule == (packed == nullptr ? nullptr : packed->rule)) return;
    const std::string given = cut_.prefix.empty() ? "" : "`prefix` " + printable(cut_.prefix) + ": ";
    throw Error(ErrorKind::kUsage, fmt::format("{}{} would be read {}", given, printable(entry.name),
                                               name.empty() ? "as an entry outside the model, such as an optimizer's"
                                               : name == expected ? "with its elements in another order"
                                                                  : fmt::format("under the name {}", printable(name))))
        .tensor(expected)
        .hint(std::string(cut_.prefix == "model." ? ""
                          : cut_.prefix.empty()   ? "choose a `prefix`, such as model, or "
                                                  : "choose another prefix, such as model, or ") +
              "rename the tensors with `rename` so that their names begin as the model's do, or leave them out with "
              "`drop`");
  }

  void add_chunks(std::uint32_t e) {
    const DcpEntry& entry = entries_[e];
    const Box all = whole(entry.shape);
    const bool is_cut = !entry.is_object && !entry.shape.empty() && volume(all) > 0;
    const bool cuts_tp = is_cut && entry.tp_dim;
    const std::size_t tp_dim = entry.tp_dim.value_or(0);
    for (std::uint32_t i = 0; i < (is_cut ? cut_.fsdp : 1); ++i) {
      for (std::uint32_t j = 0; j < (cuts_tp ? cut_.tp : 1); ++j) {
        Box box = all;
        if (cuts_tp) cut_dim(box, tp_dim, cut_.tp, j);
        if (is_cut) cut_dim(box, 0, cut_.fsdp, i);
        if (is_cut && volume(box) == 0) continue;  // the rank owns no elements
        const std::size_t first = is_cut ? std::size_t{i} * cut_.tp : 0;
        add_chunk(e, std::move(box), cuts_tp ? first + j : least_filled(first, is_cut ? cut_.tp : rank_bytes_.size()));
      }
    }
  }

  /// Returns the rank with the fewest bytes so far among ranks with the same chunk.
  std::size_t least_filled(std::size_t first, std::size_t count) const {
    const auto begin = rank_bytes_.begin() + static_cast<std::ptrdiff_t>(first);
    return static_cast<std::size_t>(std::min_element(begin, begin + static_cast<std::ptrdiff_t>(count)) -
                                    rank_bytes_.begin());
  }

  void add_chunk(std::uint32_t e, Box box, std::size_t rank) {
    rank_bytes_[rank] += num_bytes(entries_[e].dtype, box.size).value_or(0);
    const auto number = static_cast<std::uint32_t>(chunks_.size());
    chunks_.push_back({static_cast<std::uint32_t>(rank), number, e, std::move(box)});
  }

  void add_files() {
    std::sort(chunks_.begin(), chunks_.end(), [](const RankChunk& a, const RankChunk& b) {
      return std::tie(a.rank, a.number) < std::tie(b.rank, b.number);
    });
    map_.stored.reserve(chunks_.size());
    for (std::size_t begin = 0; begin < chunks_.size();) {
      std::size_t end = begin;
      while (end < chunks_.size() && chunks_[end].rank == chunks_[begin].rank) ++end;
      add_file(std::span(chunks_).subspan(begin, end - begin));
      begin = end;
    }
    std::vector<RankChunk>().swap(chunks_);  // frees memory before the metadata is serialized
  }

  /// Adds the file of a rank.
  void add_file(std::span<RankChunk> chunks) {
    TargetContainer container;
    container.format = Format::kPytorch;
    container.as_items = true;
    container.path = fmt::format("__{}_0.distcp", chunks.front().rank);
    container.tp_rank = chunks.front().rank;
    if (metadata_.files.empty())
      for (DcpGroupObject& object : objects_) {
        map_.made_objects.emplace_back(std::move(object.own_name), object.bytes);
        container.objects.push_back(std::move(object.bytes));
      }
    std::vector<TensorEntry> items;
    items.reserve(chunks.size());
    container.tensors.reserve(chunks.size());
    for (const RankChunk& chunk : chunks) {
      container.tensors.push_back(part_of(entries_[chunk.entry], chunk.box));
      const StoredTensor& tensor = container.tensors.back().stored;
      items.push_back({tensor.name, tensor.dtype, tensor.file_shape()});
      items.back().is_object = tensor.is_object;
    }
    const std::vector<DcpPlace> places = plan_dcp_items(std::move(items), {}, container.objects).places;
    const auto file_index = static_cast<std::uint32_t>(metadata_.files.size());
    metadata_.files.push_back(container.path.string());
    add_group_places(std::span(places).subspan(chunks.size()), file_index);
    const std::vector<std::uint32_t> stored = add_target_container(map_, std::move(container));
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      RankChunk& chunk = chunks[i];
      if (const auto padding = padding_in(entries_[chunk.entry], chunk.box))
        map_.add_constant(stored[i], *padding, Constant::Kind::kPadding, 0);
      DcpPlace place = places[i];
      place.file = file_index;
      metadata_.tensors[chunk.entry].chunks.push_back({std::move(chunk.box), place});
    }
  }

  /// Adds the places of the groups' objects, which follow the tensors in the first file.
  void add_group_places(std::span<const DcpPlace> places, std::uint32_t file_index) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      DcpPlace place = places[i];
      place.file = file_index;
      group_bytes_.push_back({objects_[i].name, place});
      metadata_.paths.emplace_back(std::move(objects_[i].name), std::move(objects_[i].path));
    }
  }

  /// Moves objects from the tensors to the separate entries of the metadata.
  void set_objects_apart() {
    if (states_ == nullptr) return;
    std::vector<DcpTensor> tensors;
    for (std::size_t t = 0; t < metadata_.tensors.size(); ++t) {
      DcpTensor& tensor = metadata_.tensors[t];
      if (entries_[t].is_object)
        metadata_.bytes.push_back({std::move(tensor.name), tensor.chunks.front().place});
      else
        tensors.push_back(std::move(tensor));
    }
    metadata_.tensors = std::move(tensors);
    for (DcpBytes& object : group_bytes_) metadata_.bytes.push_back(std::move(object));
  }

  /// Adds the second name of each tied parameter, for the same items. A model in training has both names, and torch
  /// requires both.
  void add_tied() {
    std::unordered_set<std::string_view> held;
    for (const LogicalTensor& tensor : logical_) held.insert(tensor.name);
    std::vector<std::pair<std::string, std::string>> tied;
    for (const auto& [name, parameter] : parameters_)
      if (!parameter->tied_to.empty() && held.count(name) == 0 && held.count(parameter->tied_to) > 0)
        tied.emplace_back(name, parameter->tied_to);
    std::sort(tied.begin(), tied.end());
    for (const auto& [name, to] : tied) {
      if (names_ && names_->find(name).entry == nullptr) continue;  // the program ties them without a second name
      const DcpEntryPlace place = place_of(name);
      const std::uint32_t source = entry_of_.at(place_of(to).name);
      validate_same_order(name, place, entries_[source]);
      DcpTensor tensor = metadata_.tensors[source];
      tensor.name = place.name;
      metadata_.paths.emplace_back(tensor.name, path_of(tensor.name));
      metadata_.tensors.push_back(std::move(tensor));
    }
  }

  /// \throws Error kUnsupported if parameter `name`, which is tied to the contents of `source`, would be packed
  /// differently.
  void validate_same_order(const std::string& name, const DcpEntryPlace& place, const DcpEntry& source) const {
    const LogicalTensor& tensor = map_.logical[source.first];
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

  /// Returns the path of a model's entry: one dictionary per part of the prefix, then the name.
  DcpPath path_of(const std::string& name) const {
    DcpPath path;
    if (!cut_.prefix.empty())
      for (std::string& part : split(cut_.prefix.substr(0, cut_.prefix.size() - 1), '.'))
        path.emplace_back(std::move(part));
    path.emplace_back(name.substr(cut_.prefix.size()));
    return path;
  }

  std::span<const LogicalTensor> logical_;
  const TrainingStates* states_;  // may be null
  const DcpCut& cut_;
  std::optional<WrittenNames> names_;  // names of another program
  bool keeps_prefix_ = false;          // set if readers will keep the prefix
  std::shared_ptr<const Family> builtin_;
  KnownModel known_{nullptr};  // as known to a reader of the checkpoint
  std::set<std::string> rounded_;
  const Model* model_ = nullptr;
  std::unordered_map<std::string_view, const ModelParameter*> parameters_;
  std::vector<DcpEntry> entries_;
  std::map<std::string, OfEntry> of_entries_;                // keyed by entry name
  std::unordered_map<std::string, std::uint32_t> entry_of_;  // indices into entries_, keyed by name
  std::map<std::string, const StateNumber*> numbers_;  // keyed by entry name; for packed entries, the first tensor's
  std::vector<DcpGroupObject> objects_;
  std::vector<DcpBytes> group_bytes_;  // places of these objects
  std::vector<std::uint64_t> rank_bytes_;
  std::vector<RankChunk> chunks_;
  TargetMap map_;
  DcpMetadata metadata_;
};

}  // namespace

TargetMap dcp_target_map(std::span<const LogicalTensor> logical, const TrainingStates* states, const Model* model,
                         const DcpCut& cut, Notes* notes) {
  Cutter cutter(logical, states, model, cut);
  TargetMap map = cutter.run();
  if (notes != nullptr && cutter.keeps_prefix())
    notes->assumed(
        fmt::format("the model's family is unknown, so `prefix` {} cannot be distinguished from its names: reading the "
                    "checkpoint will keep it",
                    printable(cut.prefix)));
  if (notes != nullptr && !cutter.rounded().empty())
    notes
        ->changed("sums are rounded to the dtype of the files, and parameters lose digits that cannot be recovered: " +
                  list_names(std::vector<std::string>(cutter.rounded().begin(), cutter.rounded().end())))
        .of({cutter.rounded().begin(), cutter.rounded().end()});
  return map;
}

}  // namespace reshard
