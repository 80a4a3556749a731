#include "reshard/layouts/optimizer/optimizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/formats/torch/xser_tensors.h"
#include "reshard/layouts/states/optimizer_keys.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOptimizers = "optimizer_states";  // a list
constexpr const char* kOptimizerKeys[] = {"optimizer", "optimizer_state_dict", kOptimizers};
constexpr const char* kDpRank = "dp_rank";
constexpr const char* kTpRank = "tp_rank";
constexpr std::size_t kMaxStates = 64;  // per parameter; an optimizer has two or three

class OptimizerReader {
 public:
  OptimizerReader(Files& files, const fs::path& path)
      : path_(path),
        stamp_(files.stamp(path)),
        torch_(read_torch_file(*open_weights(files, path), path)),
        pickle_(torch_.pickle()),
        tensors_(files, torch_, {path, torch_.size_bytes(), stamp_}) {
    file_.path = path;
    file_.is_xser = is_xser(files, path);
  }

  OptimizerFile read() {
    const PickleRef root = pickle_.root();
    if (!is_mapping(pickle_, root)) throw no_optimizer(fmt::format("contains {}, not a dict", pickle_.describe(root)));
    root_ = mapping_items(pickle_, root);
    take_wrapped();
    read_groups();
    read_ranks();
    const PickleRef base = get(kBaseStateKey);
    file_.form = base == kNoNode ? OptimizerFile::Form::kWhole : OptimizerFile::Form::kZero1;
    if (base == kNoNode) {
      if (get(kStateKey) == kNoNode) throw no_optimizer("has neither \"base_state\" nor \"state\"");
      read_states(get(kStateKey), kStateKey, "");
    } else {
      read_states(base, kBaseStateKey, kStateOffset);
      if (const PickleRef state = get(kStateKey); state != kNoNode && !mapping_items(pickle_, state).empty())
        throw bad("has states of parameters under \"state\" as well as under \"base_state\"");
    }
    read_shapes();
    if (file_.form == OptimizerFile::Form::kWhole) infer_shapes();
    read_masters();
    file_.sort_shards();
    list_others();
    file_.files = tensors_.files();
    return std::move(file_);
  }

 private:
  Error bad(const std::string& message) const {
    return Error(ErrorKind::kBadInput, message)
        .in(path_)
        .hint(
            "the file is damaged, or was written by an unsupported program: copy it again, or leave out "
            "`with-optimizer`");
  }
  Error no_optimizer(const std::string& message) const {
    return bad(message).hint("it is not an optimizer file that NxD saves");
  }
  PickleRef get(std::string_view key) const { return value_of(pickle_, root_, key, path_); }

  /// If the file contains more than the optimizer, makes the optimizer's value the root.
  void take_wrapped() {
    if (get(kGroupsKey) != kNoNode) return;
    const char* key = nullptr;
    for (const char* const one : kOptimizerKeys) {
      if (get(one) == kNoNode) continue;
      if (key != nullptr)
        throw bad(fmt::format("contains \"{}\" and \"{}\": which one is the optimizer?", key, one))
            .hint("save the checkpoint with one of the two, or leave out `with-optimizer`");
      key = one;
    }
    if (key == nullptr) return;
    PickleRef optimizer = get(key);
    if (key == kOptimizers) {
      if (pickle_.kind(optimizer) != PickleKind::kList && pickle_.kind(optimizer) != PickleKind::kTuple)
        throw bad(fmt::format("its \"{}\" is {}, not a list", key, pickle_.describe(optimizer)));
      const auto all = pickle_.items(optimizer);
      if (all.size() > 1)
        throw Error(ErrorKind::kUnsupported, fmt::format("contains {} optimizers under \"{}\"", all.size(), key))
            .in(path_)
            .hint("only one optimizer can be read: leave out `with-optimizer`, or save with one");
      if (all.empty()) return;
      optimizer = all.front();
    }
    root_ = dict(optimizer, fmt::format("its \"{}\"", key));
  }

  /// Reads the ranks that NxD's save_sharded_state_dict records.
  void read_ranks() {
    for (const auto& [key, value] : {std::pair(kDpRank, &file_.dp_rank), {kTpRank, &file_.tp_rank}})
      if (const PickleRef node = get(key); node != kNoNode) *value = number(node, fmt::format("its \"{}\"", key));
  }

  std::uint64_t number(PickleRef node, const std::string& what) const {
    if (node == kNoNode || pickle_.kind(node) != PickleKind::kInt || pickle_.integer(node) < 0)
      throw bad(
          fmt::format("{} is {}, not a whole number", what, node == kNoNode ? "missing" : pickle_.describe(node)));
    return static_cast<std::uint64_t>(pickle_.integer(node));
  }

  std::vector<PicklePair> dict(PickleRef node, const std::string& what) const {
    if (!is_mapping(pickle_, node)) throw bad(fmt::format("{} is {}, not a dict", what, pickle_.describe(node)));
    return mapping_items(pickle_, node);
  }

  /// Reads the groups. Their parameters are numbered consecutively; the numbers of experts start at 0 again.
  void read_groups() {
    const PickleRef node = get(kGroupsKey);
    if (node == kNoNode) throw no_optimizer("has no \"param_groups\"");
    if (pickle_.kind(node) != PickleKind::kList && pickle_.kind(node) != PickleKind::kTuple)
      throw bad(fmt::format("its \"param_groups\" is {}, not a list", pickle_.describe(node)));
    const auto groups = pickle_.items(node);
    if (groups.size() > kMaxParameterGroups)
      throw bad(fmt::format("its \"param_groups\" has {} groups, but at most {} are supported", groups.size(),
                            kMaxParameterGroups))
          .hint("the file is damaged: an optimizer has a few groups");
    const PickleRef offset = get(kGroupOffset);
    const std::uint64_t first_expert =
        offset == kNoNode ? groups.size() : number(offset, fmt::format("\"{}\"", kGroupOffset));
    if (first_expert > groups.size())
      throw bad(fmt::format("its \"{}\" is {}, but there are {} groups", kGroupOffset, first_expert, groups.size()));
    file_.first_expert_group = static_cast<std::uint32_t>(first_expert);
    std::uint64_t next = 0, before = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (g == first_expert) before += std::exchange(next, 0);
      const std::uint64_t first = before + next;
      next = read_group(groups[g], g, next);
      file_.groups.back().first = static_cast<std::uint32_t>(first);
      if (before + next > pickle_.num_nodes()) throw bad("its groups list the same parameters repeatedly");
    }
    file_.entries.resize(before + next);
  }

  std::uint64_t read_group(PickleRef node, std::size_t g, std::uint64_t next) {
    const std::string what = fmt::format("group {}", g);
    const auto items = dict(node, what);
    OptimizerFileGroup& group = file_.groups.emplace_back();
    const PickleRef params = value_of(pickle_, items, kGroupParametersKey, path_);
    if (params == kNoNode || (pickle_.kind(params) != PickleKind::kList && pickle_.kind(params) != PickleKind::kTuple))
      throw bad(fmt::format("{} has no list \"params\"", what));
    for (const PickleRef param : pickle_.items(params)) {
      const std::uint64_t id = number(param, fmt::format("a number in \"params\" of {}", what));
      if (id != next)
        throw bad(
            fmt::format("\"params\" of {} has id {} instead of {}: ids continue from group to group", what, id, next));
      ++next;
    }
    group.count = static_cast<std::uint32_t>(pickle_.items(params).size());
    if (items.size() > kMaxHyperparameters)
      throw bad(fmt::format("{} has {} hyperparameters, but at most {} are supported", what, items.size(),
                            kMaxHyperparameters));
    std::vector<PickleRef> keys;
    for (const auto& [key, value] : items) {
      if (pickle_.kind(key) != PickleKind::kString) throw bad(fmt::format("{} has a key that is not a string", what));
      std::string name(pickle_.text(key));
      if (name == kGroupParametersKey) continue;
      if (torch_.is_tensor(value) || is_xser_reference(pickle_, value))
        throw Error(ErrorKind::kUnsupported, fmt::format("{} of {} is a tensor, not a plain value", name, what))
            .in(path_)
            .hint("save the checkpoint with a hyperparameter that is a number");
      group.values.emplace_back(name, plain_value(value, fmt::format("{} of {}", name, what)));
      keys.push_back(key);
    }
    refuse_twins(pickle_, std::move(keys), what, path_);
    return next;
  }

  /// Returns the offset of experts' numbers in a dict; std::nullopt if they have none.
  std::optional<std::uint64_t> offset_of(const std::string& key) const {
    if (file_.num_dense() == file_.entries.size() || get(key) == kNoNode) return std::nullopt;
    return number(get(key), "\"" + key + "\"");
  }

  /// Returns the index of the entry whose number is a dict's key. \param offset  see offset_of.
  std::uint32_t entry_of(PickleRef key, const std::string& where, std::optional<std::uint64_t> offset,
                         std::vector<bool>& seen) {
    const std::uint64_t id = number(key, fmt::format("a key of \"{}\"", where));
    const std::uint64_t dense = file_.num_dense(), all = file_.entries.size();
    std::uint64_t index = id;
    if (offset) index = id < *offset && id < dense ? id : id < *offset ? all : dense + (id - *offset);
    if (index >= all)
      throw bad(fmt::format("\"{}\" has id {}, but the groups have {} parameters", where, id, all))
          .hint("the file is damaged, or contains two optimizers");
    if (seen[index]) throw bad(fmt::format("\"{}\" has id {} twice", where, id));
    seen[index] = true;
    return static_cast<std::uint32_t>(index);
  }

  void read_states(PickleRef node, const std::string& where, const std::string& offset_key) {
    std::vector<bool> seen(file_.entries.size());
    const auto offset = offset_key.empty() ? std::nullopt : offset_of(offset_key);
    for (const auto& [key, value] : dict(node, "\"" + where + "\"")) {
      const std::uint32_t entry = entry_of(key, where, offset, seen);
      const std::string what = fmt::format("{}.{}", where, pickle_.integer(key));
      const auto items = dict(value, what);
      if (items.size() > kMaxStates) throw bad(fmt::format("{} has {} states", what, items.size()));
      std::vector<PickleRef> names;
      for (const auto& [state, content] : items) {
        add_state(entry, tensor_name(pickle_, state, path_), content, what);
        names.push_back(state);
      }
      refuse_twins(pickle_, std::move(names), what, path_);
    }
  }

  void add_state(std::uint32_t entry, std::string name, PickleRef node, const std::string& what) {
    // A file may refer to one dict under many numbers; reading must not multiply the file's size.
    if (++states_ > pickle_.num_nodes()) throw bad("contains the same states repeatedly");
    const std::string full = what + "." + name;
    if (name == kMasterState)
      throw bad(fmt::format("contains a state called \"{}\", as master weights are here", name));
    if (is_tensor(node))
      add_shard(entry, tensor(node, full), std::move(name));
    else
      file_.entries[entry].numbers.emplace_back(std::move(name), plain_value(node, full));
  }

  void add_shard(std::uint32_t entry, TensorEntry tensor, std::string state) {
    tensor.name = std::move(state);
    file_.shards.push_back({std::move(tensor), entry});
  }

  /// A file may refer to one large value under many names; reading must not multiply the file's size by much.
  PlainValue plain_value(PickleRef node, const std::string& what) {
    PlainValue value = read_plain_value(pickle_, node, what, path_);
    values_ += num_values(value);
    if (values_ > pickle_.num_nodes() + kMaxPlainValues) throw bad("contains the same values repeatedly");
    return value;
  }

  bool is_tensor(PickleRef node) const { return is_xser_reference(pickle_, node) || torch_.is_tensor(node); }

  TensorEntry tensor(PickleRef node, const std::string& name) {
    return is_xser_reference(pickle_, node) ? tensors_.read(node, name) : torch_.tensor(node, name);
  }

  void read_shapes() {
    const PickleRef node = get(kShapesKey);
    if (node == kNoNode) return;
    std::vector<bool> seen(file_.entries.size());
    const auto offset = offset_of(kShapeOffset);
    for (const auto& [key, value] : dict(node, "\"shape_info\"")) {
      OptimizerEntry& entry = file_.entries[entry_of(key, kShapesKey, offset, seen)];
      entry.shape = read_size(pickle_, value);
      if (!entry.shape || !num_elems(*entry.shape))
        throw bad(fmt::format("its \"shape_info\" has {} instead of the shape of id {}", pickle_.describe(value),
                              pickle_.integer(key)));
    }
  }

  /// Takes the shapes that the file does not record from each parameter's first state with dims.
  void infer_shapes() {
    for (const StateShard& shard : file_.shards)
      if (std::optional<Dims>& shape = file_.entries[shard.entry].shape; !shape && shard.has_rows())
        shape = shard.tensor.shape;
  }

  void read_masters() {
    const PickleRef node = get(kMastersKey);
    if (node == kNoNode) return;
    std::vector<bool> seen(file_.entries.size());
    for (const auto& [key, value] : dict(node, "\"sharded_master_weights\"")) {
      const std::uint32_t entry = entry_of(key, kMastersKey, std::nullopt, seen);
      const std::string name = fmt::format("{}.{}", kMastersKey, pickle_.integer(key));
      if (!is_tensor(value)) throw bad(fmt::format("is {}, not a tensor", pickle_.describe(value))).tensor(name);
      add_shard(entry, tensor(value, name), kMasterState);
    }
  }

  void list_others() {
    const std::set<std::string_view> known{kGroupsKey, kStateKey, kBaseStateKey, kShapesKey,   kMastersKey,
                                           kDpRank,    kTpRank,   kGroupOffset,  kStateOffset, kShapeOffset};
    for (const auto& [key, value] : root_)
      if (pickle_.kind(key) != PickleKind::kString)
        file_.others.push_back(pickle_.describe(key));
      else if (!known.contains(pickle_.text(key)))
        file_.others.emplace_back(pickle_.text(key));
  }

  const fs::path& path_;
  FileStamp stamp_;
  TorchFile torch_;
  const Pickle& pickle_;
  XserTensors tensors_;
  std::vector<PicklePair> root_;
  std::size_t states_ = 0;
  std::size_t values_ = 0;
  OptimizerFile file_;
};

}  // namespace

bool holds_optimizer(Files& files, const fs::path& path) {
  const TorchFile file = read_torch_file(*open_weights(files, path), path);
  const Pickle& pickle = file.pickle();
  const auto root = mapping_items(pickle, pickle.root());
  return std::any_of(std::begin(kOptimizerKeys), std::end(kOptimizerKeys), [&](const char* key) {
    const PickleRef value = value_of(pickle, root, key, path);
    return value != kNoNode &&
           (key != kOptimizers || pickle.kind(value) != PickleKind::kList || !pickle.items(value).empty());
  });
}

OptimizerFile read_optimizer_file(Files& files, const fs::path& path) {
  try {
    return OptimizerReader(files, path).read();
  } catch (Error& error) {
    if (error.kind() == ErrorKind::kBadInput && error.hint().empty())
      error.hint("the file is damaged, or not an optimizer file: copy it again, or use another checkpoint");
    throw;
  }
}

}  // namespace reshard
