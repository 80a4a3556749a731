#include "reshard/layouts/deepspeed/zero_files.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>

#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/tensor/cast/numeric.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Reads values from one file. Errors name the file.
class ZeroReader {
 public:
  ZeroReader(Files& files, const fs::path& path)
      : stamp_(files.stamp(path)),
        source_(open_weights(files, path)),
        file_(read_torch_file(*source_, path)),
        pickle_(file_.pickle()),
        path_(path) {}

  ContainerFile container_file() const { return {path_, file_.size_bytes(), stamp_}; }
  const Pickle& pickle() const { return pickle_; }
  bool is_tensor(PickleRef node) const { return file_.is_tensor(node); }

  Error bad(std::string message) const { return Error(ErrorKind::kBadInput, std::move(message)).in(path_); }

  /// Returns the items of the mapping `node`. A crafted file may refer to one dict many times, so that all items read
  /// must not exceed the number of nodes in the file.
  std::vector<PicklePair> items(PickleRef node, std::string_view key) {
    if (node == kNoNode || !is_mapping(pickle_, node))
      throw bad(fmt::format("its \"{}\" is {}, not a dict", key, describe(node)));
    items_read_ += mapping_size(pickle_, node);
    if (items_read_ > pickle_.num_nodes())
      throw bad(fmt::format("its \"{}\" contains the same values repeatedly", key));
    return mapping_items(pickle_, node);
  }
  PickleRef get(std::span<const PicklePair> dict, std::string_view key) const {
    return value_of(pickle_, dict, key, path_);
  }
  PickleRef need(std::span<const PicklePair> dict, std::string_view key) const {
    const PickleRef found = get(dict, key);
    if (found == kNoNode) throw bad(fmt::format("has no \"{}\"", key)).hint("ZeRO did not save this file");
    return found;
  }
  std::span<const PickleRef> list(PickleRef node, std::string_view key) const {
    if (pickle_.kind(node) != PickleKind::kList && pickle_.kind(node) != PickleKind::kTuple)
      throw bad(fmt::format("its \"{}\" is {}, not a list", key, describe(node)));
    return pickle_.items(node);
  }
  /// Returns a list with one item per partition.
  std::span<const PickleRef> list_of(std::size_t partitions, PickleRef node, std::string_view key) const {
    const auto items = list(node, key);
    if (items.size() != partitions)
      throw bad(fmt::format("its \"{}\" has {} groups, but there are {} partitions", key, items.size(), partitions));
    return items;
  }
  std::uint64_t number(PickleRef node, std::string_view key) const {
    if (node == kNoNode || pickle_.kind(node) != PickleKind::kInt || pickle_.integer(node) < 0)
      throw bad(fmt::format("its \"{}\" is {}, not a whole number", key, describe(node)));
    return static_cast<std::uint64_t>(pickle_.integer(node));
  }

  TensorEntry tensor(PickleRef node, const std::string& name) const { return file_.tensor(node, name); }
  /// Returns a number, which may be stored as a tensor of one element; std::nullopt for any other value.
  std::optional<double> plain_number(PickleRef node) const {
    if (pickle_.kind(node) == PickleKind::kInt) return static_cast<double>(pickle_.integer(node));
    if (pickle_.kind(node) == PickleKind::kFloat) return pickle_.real(node);
    if (!is_tensor(node)) return std::nullopt;
    const TensorEntry stored = tensor(node, "a number");
    std::array<std::byte, sizeof(std::uint64_t)> buffer;
    if (num_elems(stored.shape) != 1u || bits(stored.dtype) % 8 != 0 || bits(stored.dtype) / 8 > buffer.size())
      return std::nullopt;
    const auto bytes = std::span(buffer).first(bits(stored.dtype) / 8);
    source_->read_at(stored.offset_bytes, bytes);
    return summarize(stored.dtype, bytes).min;
  }

  /// The tensors of a state dict; what is none is left out.
  std::vector<TensorEntry> tensors(PickleRef node, std::string_view key) {
    auto held = items(node, key);
    std::erase_if(held, [&](const PicklePair& item) { return !file_.is_tensor(item.second); });
    std::vector<PickleRef> keys;
    for (const auto& [name, value] : held) keys.push_back(name);
    validate_names(std::move(keys), key);
    std::vector<TensorEntry> found;
    for (const auto& [name, value] : held) found.push_back(tensor(value, tensor_name(pickle_, name, path_)));
    return found;
  }

  /// Returns parameters with their shapes. Names must have been validated.
  std::vector<ZeroParameter> shapes(const std::vector<PicklePair>& items, std::string_view key) const {
    std::vector<ZeroParameter> found;
    for (const auto& [name, value] : items) {
      auto shape = read_size(pickle_, value);
      std::string parameter = tensor_name(pickle_, name, path_);
      if (!shape)
        throw bad(fmt::format("its \"{}\" has {} instead of a shape", key, describe(value))).tensor(parameter);
      if (!num_elems(*shape)) throw bad("its elements overflow 64 bits").tensor(parameter);
      found.push_back({std::move(parameter), std::move(*shape)});
    }
    return found;
  }

  /// Validates that `names` are strings and unique. Call before copying names, since a file may contain one long name
  /// and refer to it a million times.
  void validate_names(std::vector<PickleRef> names, std::string_view key) const {
    for (const PickleRef name : names)
      if (pickle_.kind(name) != PickleKind::kString) tensor_name(pickle_, name, path_);  // throws
    refuse_twins(pickle_, std::move(names), fmt::format("\"{}\"", key), path_);
  }
  std::string name(PickleRef node) const { return tensor_name(pickle_, node, path_); }
  std::string describe(PickleRef node) const { return node == kNoNode ? "missing" : pickle_.describe(node); }

 private:
  FileStamp stamp_;
  std::shared_ptr<const Source> source_;
  TorchFile file_;
  const Pickle& pickle_;
  fs::path path_;
  std::size_t items_read_ = 0;  // over all mappings; torch saves each item once
};

/// Returns the value of a member of ZeroStageEnum, an IntEnum that is pickled by value or, with CPython 3.11.0 to
/// 3.11.3, as an attribute of its class; std::nullopt for any other object.
std::optional<std::uint64_t> stage_number(const Pickle& pickle, PickleRef node) {
  constexpr std::string_view kStages[] = {"disabled", "optimizer_states", "gradients", "weights"};
  if (pickle.kind(node) == PickleKind::kObject) {
    const auto args = pickle.items(pickle.args(node));
    if (args.empty()) return std::nullopt;
    const PickleRef last = args.back();
    for (std::uint64_t i = 0; i < std::size(kStages); ++i)
      if (pickle.kind(last) == PickleKind::kString && pickle.text(last) == kStages[i]) return i;
    node = last;
  }
  if (pickle.kind(node) != PickleKind::kInt || pickle.integer(node) < 0) return std::nullopt;
  return static_cast<std::uint64_t>(pickle.integer(node));
}

/// Validates that a master partition has one dim of floats in C order.
void validate_master(const ZeroReader& reader, const TensorEntry& master) {
  if (master.shape.size() == 1 && master.strides.empty() && describe(master.dtype).kind == DTypeClass::kFloat) return;
  throw reader
      .bad(fmt::format("is {} {}, not a flat partition of weights", name(master.dtype), to_string(master.shape)))
      .tensor(master.name);
}

std::vector<TensorEntry> read_masters(const ZeroReader& reader, PickleRef node, std::string_view key) {
  std::vector<TensorEntry> masters;
  for (const PickleRef item : reader.list(node, key)) {
    masters.push_back(reader.tensor(item, fmt::format("{}[{}]", key, masters.size())));
    validate_master(reader, masters.back());
  }
  return masters;
}

/// Reads the number of steps that the groups of an optimizer record, as some of DeepSpeed's do.
void read_step(ZeroReader& reader, PickleRef groups, ZeroOptimStates& states) {
  if (groups == kNoNode || reader.pickle().kind(groups) != PickleKind::kList) return;
  for (const PickleRef group : reader.pickle().items(groups)) {
    if (states.step || !is_mapping(reader.pickle(), group)) return;
    const PickleRef step = reader.get(reader.items(group, "param_groups"), "step");
    if (step != kNoNode) states.step = reader.plain_number(step);
  }
}

/// {"state": {group: {"exp_avg": tensor, "step": number, …}}, "param_groups": […]}
void read_state(ZeroReader& reader, PickleRef optimizer, ZeroOptimStates& states) {
  if (optimizer == kNoNode || !is_mapping(reader.pickle(), optimizer)) return;
  const auto items = reader.items(optimizer, "optimizer_state_dict");
  read_step(reader, reader.get(items, "param_groups"), states);
  const PickleRef state = reader.get(items, "state");
  if (state == kNoNode || !is_mapping(reader.pickle(), state)) return;
  for (const auto& [group, values] : reader.items(state, "state")) {
    if (!is_mapping(reader.pickle(), values)) continue;
    const auto of_group = reader.items(values, "state");
    if (const PickleRef step = reader.get(of_group, "step"); step != kNoNode && !states.step)
      states.step = reader.plain_number(step);
    for (const auto& [key, value] : of_group) {
      if (!reader.is_tensor(value)) continue;
      ++states.state.tensors;
      states.state.bytes += reader.tensor(value, "an optimizer state").size_bytes;
    }
  }
}

std::vector<std::vector<ZeroSlice>> read_slices(ZeroReader& reader, PickleRef node, std::size_t partitions) {
  constexpr std::string_view kKey = "param_slice_mappings";
  std::vector<std::vector<ZeroSlice>> slices;
  if (node == kNoNode) return slices;
  for (const PickleRef group : reader.list_of(partitions, node, kKey)) {
    auto& of_group = slices.emplace_back();
    for (const auto& [key, value] : reader.items(group, kKey)) {
      const PickleRef state = reader.pickle().state(value);
      if (state == kNoNode)
        throw reader.bad(fmt::format("its \"{}\" has {}, not a fragment's position", kKey, reader.describe(value)))
            .tensor(reader.name(key));
      const auto fields = reader.items(state, "fragment_address");
      of_group.push_back({reader.name(key), reader.number(reader.get(fields, "start"), "start"),
                          reader.number(reader.get(fields, "numel"), "numel")});
    }
  }
  return slices;
}

std::vector<std::vector<std::uint64_t>> read_paddings(const ZeroReader& reader, PickleRef node,
                                                      std::size_t partitions) {
  constexpr std::string_view kKey = "param_alignment_paddings";
  std::vector<std::vector<std::uint64_t>> paddings;
  if (node == kNoNode) return paddings;
  std::size_t count = 0;
  for (const PickleRef group : reader.list_of(partitions, node, kKey)) {
    auto& of_group = paddings.emplace_back();
    const auto numbers = reader.list(group, kKey);
    count += numbers.size();
    if (count > reader.pickle().num_nodes())
      throw reader.bad(fmt::format("its \"{}\" contains the same values repeatedly", kKey));
    for (const PickleRef padding : numbers) of_group.push_back(reader.number(padding, kKey));
  }
  return paddings;
}

/// Returns one number, or one per group.
/// \param groups  Number of groups in stages 1 and 2, where each group is a partition; std::nullopt in stage 3.
std::vector<std::uint64_t> read_partition_count(const ZeroReader& reader, PickleRef node,
                                                std::optional<std::size_t> groups) {
  constexpr std::string_view kKey = "partition_count";
  if (reader.pickle().kind(node) == PickleKind::kInt) return {reader.number(node, kKey)};
  std::vector<std::uint64_t> counts;
  for (const PickleRef item : groups ? reader.list_of(*groups, node, kKey) : reader.list(node, kKey))
    counts.push_back(reader.number(item, kKey));
  if (!groups && counts.empty()) throw reader.bad(fmt::format("its \"{}\" is empty", kKey));
  return counts;
}

std::vector<std::string> read_names(const ZeroReader& reader, PickleRef node, std::string_view key) {
  const auto items = reader.list(node, key);
  reader.validate_names({items.begin(), items.end()}, key);
  std::vector<std::string> names;
  for (const PickleRef name : items) names.push_back(reader.name(name));
  return names;
}

/// Reads trained parameters by group, and frozen parameters. Validates that all names are unique.
void read_shapes(ZeroReader& reader, PickleRef trained, PickleRef frozen, ZeroModelStates& states) {
  constexpr std::string_view kTrained = "param_shapes", kFrozen = "frozen_param_shapes";
  std::vector<std::vector<PicklePair>> groups;
  std::vector<PickleRef> names;
  const auto take = [&](PickleRef node, std::string_view key) {
    groups.push_back(reader.items(node, key));
    for (const auto& [name, shape] : groups.back()) names.push_back(name);
  };
  if (trained != kNoNode)
    for (const PickleRef group : reader.list(trained, kTrained)) take(group, kTrained);
  const std::size_t count = groups.size();
  if (frozen != kNoNode) take(frozen, kFrozen);
  reader.validate_names(std::move(names), kTrained);
  for (std::size_t i = 0; i < count; ++i) states.groups.push_back(reader.shapes(groups[i], kTrained));
  if (frozen != kNoNode) states.frozen = reader.shapes(groups.back(), kFrozen);
}

/// Reads the names that share a tensor with another name. Limits their total length to the file size, which no model
/// approaches.
std::vector<std::pair<std::string, std::string>> read_shared(ZeroReader& reader, PickleRef node) {
  constexpr std::string_view kKey = "shared_params";
  const auto items = reader.items(node, kKey);
  std::vector<PickleRef> names;
  std::uint64_t bytes = 0;
  for (const auto& [name, target] : items) {
    names.push_back(name);
    bytes += reader.pickle().text(target).size();
  }
  if (bytes > reader.pickle().size_bytes())
    throw reader.bad(fmt::format("its \"{}\" contains the same names repeatedly", kKey));
  reader.validate_names(std::move(names), kKey);
  std::vector<std::pair<std::string, std::string>> shared;
  for (const auto& [name, target] : items) shared.emplace_back(reader.name(name), reader.name(target));
  return shared;
}

}  // namespace

ZeroModelStates read_zero_model_states(Files& files, const fs::path& path) {
  ZeroReader reader(files, path);
  const auto root = reader.items(reader.pickle().root(), "root");
  ZeroModelStates states;
  states.file = reader.container_file();
  if (const PickleRef module = reader.get(root, "module"); module != kNoNode)
    states.module = reader.tensors(module, "module");
  if (const PickleRef names = reader.get(root, "buffer_names"); names != kNoNode)
    states.buffer_names = read_names(reader, names, "buffer_names");
  read_shapes(reader, reader.get(root, "param_shapes"), reader.get(root, "frozen_param_shapes"), states);
  if (const PickleRef fragments = reader.get(root, "frozen_param_fragments"); fragments != kNoNode)
    states.frozen_fragments = reader.tensors(fragments, "frozen_param_fragments");
  if (const PickleRef shared = reader.get(root, "shared_params"); shared != kNoNode)
    states.shared = read_shared(reader, shared);
  if (const PickleRef size = reader.get(root, "mp_world_size"); size != kNoNode)
    states.model_parallel_size = reader.number(size, "mp_world_size");
  if (const PickleRef steps = reader.get(root, "global_steps");
      steps != kNoNode && reader.pickle().kind(steps) == PickleKind::kInt)
    states.global_steps = reader.pickle().integer(steps);
  return states;
}

ZeroOptimStates read_zero_optim_states(Files& files, const fs::path& path) {
  ZeroReader reader(files, path);
  const auto root = reader.items(reader.pickle().root(), "root");
  const auto dict = reader.items(reader.need(root, "optimizer_state_dict"), "optimizer_state_dict");
  ZeroOptimStates states;
  states.file = reader.container_file();
  const PickleRef flat = reader.get(dict, "fp32_flat_groups");
  const PickleRef partitions = reader.get(dict, "single_partition_of_fp32_groups");
  if ((flat == kNoNode) == (partitions == kNoNode))
    throw reader
        .bad("contains neither \"single_partition_of_fp32_groups\" (ZeRO 1 and 2) nor \"fp32_flat_groups\" (ZeRO 3)")
        .hint("ZeRO did not save this file");
  const PickleRef stage = reader.get(dict, "zero_stage");
  const auto number = stage == kNoNode ? std::optional<std::uint64_t>(1) : stage_number(reader.pickle(), stage);
  if (!number || *number < 1 || *number > 3 || (*number == 3) != (flat != kNoNode))
    throw reader.bad(fmt::format("its \"zero_stage\" is {}, which does not fit its weights", reader.describe(stage)));
  states.stage = static_cast<unsigned>(*number);
  const PickleRef ranks = reader.need(dict, "partition_count");
  if (flat != kNoNode) {
    states.masters = read_masters(reader, flat, "fp32_flat_groups");
    states.partition_count = read_partition_count(reader, ranks, {});
    read_state(reader, reader.get(dict, "optimizer_state_dict"), states);
  } else {
    states.masters = read_masters(reader, partitions, "single_partition_of_fp32_groups");
    const std::size_t groups = states.masters.size();
    states.partition_count = read_partition_count(reader, ranks, groups);
    states.paddings = read_paddings(reader, reader.get(dict, "param_alignment_paddings"), groups);
    states.slices = read_slices(reader, reader.get(dict, "param_slice_mappings"), groups);
    read_state(reader, reader.get(dict, "base_optimizer_state"), states);
  }
  return states;
}

TensorEntry read_zero_parameter(Files& files, const fs::path& path, ContainerFile& file) {
  ZeroReader reader(files, path);
  file = reader.container_file();
  PickleRef node = reader.pickle().root();
  if (is_mapping(reader.pickle(), node)) node = reader.need(reader.items(node, "root"), "param");
  return reader.tensor(node, path.parent_path().filename().string());
}

}  // namespace reshard
