#include "reshard/formats/torch/state_dict.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "reshard/base/strings.h"
#include "reshard/formats/common/tensor_names.h"
#include "reshard/formats/pickle/pickle_contents.h"
#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/xser.h"

namespace reshard {
namespace {

using Pairs = std::vector<PicklePair>;

/// Keys of a state dict in a file with other contents; earlier keys take precedence.
struct Wrapper {
  std::string_view key;
  bool is_average = false;  // average of the weights over the steps of training (EMA)
};
constexpr Wrapper kWrappers[] = {
    {"model"},     {"state_dict"},      {"module"},          {"model_state_dict"},     {"weights"},
    {"ema", true}, {"model_ema", true}, {"ema_model", true}, {"ema_state_dict", true}, {"state_dict_ema", true}};
constexpr std::string_view kOuterWrapper = "state";       // Composer's, around one of them
constexpr std::size_t kShownNameBytes = 100;              // per name in a list
constexpr std::string_view kExtraState = "_extra_state";  // added to the state dict by get_extra_state of a module

/// Names for a warning: the first few, truncated, and the total number. Millions of keys may share one long text.
class ShortList {
 public:
  void add(std::string_view name) {
    if (first_.size() < kShown) first_.push_back(printable(name.substr(0, kShownNameBytes)));
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    const std::string names = join(first_, ", ");
    return count_ == first_.size() ? names : fmt::format("{}, … ({} in all)", names, count_);
  }

 private:
  static constexpr std::size_t kShown = 6;

  std::vector<std::string> first_;
  std::size_t count_ = 0;
};

class Finder {
 public:
  Finder(const TorchFile& file, const std::function<bool(PickleRef)>& is_value)
      : file_(file), pickle_(file.pickle()), is_value_(is_value), seen_(pickle_.num_nodes()) {}

  StateDict find() {
    Pairs pairs = top_mapping();
    if (const PickleRef inner = wrapped(pairs); inner != kNoNode) pairs = mapping_items(pickle_, inner);
    refuse_deeper(pairs);
    refuse_twin_names(pairs);
    for (const auto& [key, value] : pairs) {
      if (is_value_(value))
        result_.values.emplace_back(tensor_name(pickle_, key, file_.path()), value);
      else if (label(key) == kLoraConfigKey)
        result_.descriptions.emplace_back(kLoraConfigKey, "");
      else
        aside_.add(label(key));
    }
    if (result_.left_out.empty()) result_.left_out = aside_.text();
    if (!aside_.empty())
      result_.warnings.push_back("skipped entries that are not tensors of the state dict: " + aside_.text());
    if (const auto unknown = unknown_classes_with_storages(pickle_); !unknown.empty())
      result_.warnings.push_back("contains tensors inside objects of " + list_names(unknown) + ", which were skipped");
    return std::move(result_);
  }

 private:
  Error unsupported(std::string message) const {
    return Error(ErrorKind::kUnsupported, std::move(message))
        .in(file_.path())
        .hint("save the state dict alone: torch.save(model.state_dict(), path)");
  }

  std::string_view label(PickleRef key) const {
    return pickle_.kind(key) == PickleKind::kString ? pickle_.text(key) : std::string_view("(no string)");
  }

  Pairs top_mapping() const;
  std::vector<const Wrapper*> wrappers_in(const Pairs& top) const;
  void refuse_rivals(const Pairs& top, const std::vector<const Wrapper*>& wrappers) const;
  const PicklePair* pair_of(const Pairs& pairs, std::string_view key) const;
  PickleRef wrapped(const Pairs& top, const std::string& above = {});
  PickleRef doubly_wrapped(const Pairs& top);
  bool add_description(std::string_view key);
  void refuse_deeper(const Pairs& pairs);
  bool holds_values(PickleRef node);
  void refuse_twin_names(const Pairs& pairs) const;

  const TorchFile& file_;
  const Pickle& pickle_;
  const std::function<bool(PickleRef)>& is_value_;
  std::vector<bool> seen_;
  ShortList aside_;
  StateDict result_;
};

Pairs Finder::top_mapping() const {
  const PickleRef root = pickle_.root();
  if (is_value_(root)) throw unsupported("contains one tensor, not a state dict");
  if (is_mapping(pickle_, root)) return mapping_items(pickle_, root);
  throw unsupported("contains " + pickle_.describe(root) + ", not a state dict");
}

const PicklePair* Finder::pair_of(const Pairs& pairs, std::string_view key) const {
  const auto found = std::find_if(pairs.begin(), pairs.end(), [&](const PicklePair& pair) {
    return pickle_.kind(pair.first) == PickleKind::kString && pickle_.text(pair.first) == key;
  });
  return found == pairs.end() ? nullptr : &*found;
}

/// Returns those kWrappers under which `top` has a mapping with tensors.
std::vector<const Wrapper*> Finder::wrappers_in(const Pairs& top) const {
  std::vector<const Wrapper*> wrappers;
  for (const Wrapper& wrapper : kWrappers) {
    const PicklePair* const pair = pair_of(top, wrapper.key);
    if (!pair || !is_mapping(pickle_, pair->second)) continue;
    const Pairs inner = mapping_items(pickle_, pair->second);
    if (std::any_of(inner.begin(), inner.end(), [&](const PicklePair& one) { return is_value_(one.second); }))
      wrappers.push_back(&wrapper);
  }
  return wrappers;
}

/// The first of `wrappers` is used. Others of equal rank may have names of another model, but not the same names.
void Finder::refuse_rivals(const Pairs& top, const std::vector<const Wrapper*>& wrappers) const {
  const Wrapper& first = *wrappers.front();
  std::unordered_set<std::string_view> names;
  for (const Wrapper* const rival : wrappers) {
    if (rival->is_average != first.is_average) continue;
    for (const PicklePair& pair : mapping_items(pickle_, pair_of(top, rival->key)->second)) {
      if (!is_value_(pair.second) || pickle_.kind(pair.first) != PickleKind::kString) continue;
      if (rival == &first)
        names.insert(pickle_.text(pair.first));
      else if (names.count(pickle_.text(pair.first)) > 0)
        throw unsupported(
            fmt::format("contains state dicts with the same names under \"{}\" and \"{}\": which one is the model's?",
                        first.key, rival->key));
    }
  }
}

/// Returns wrapped() of the mapping under kOuterWrapper, or kNoNode.
PickleRef Finder::doubly_wrapped(const Pairs& top) {
  const PicklePair* const outer = pair_of(top, kOuterWrapper);
  if (outer == nullptr || !is_mapping(pickle_, outer->second)) return kNoNode;
  const PickleRef inner = wrapped(mapping_items(pickle_, outer->second), std::string(kOuterWrapper) + ".");
  if (inner == kNoNode) return kNoNode;
  for (const PicklePair& other : top) {
    if (&other != outer && label(other.first) == kOuterWrapper)
      throw Error(ErrorKind::kBadInput, fmt::format("contains \"{}\" twice", kOuterWrapper)).in(file_.path());
    if (&other != outer) aside_.add(label(other.first));
  }
  return inner;
}

/// Returns the mapping under the first of kWrappers that contains tensors, or kNoNode.
/// \param above  where `top` is in the file, for messages.
PickleRef Finder::wrapped(const Pairs& top, const std::string& above) {
  const std::vector<const Wrapper*> wrappers = wrappers_in(top);
  if (wrappers.empty()) return above.empty() ? doubly_wrapped(top) : kNoNode;
  const Wrapper& wrapper = *wrappers.front();
  const PicklePair* const found = pair_of(top, wrapper.key);
  ShortList averages;
  for (const PicklePair& other : top) {
    if (&other == found) continue;
    // Loaders disagree on which of two values of a key to use.
    if (label(other.first) == wrapper.key)
      throw Error(ErrorKind::kBadInput, fmt::format("contains \"{}\" twice", wrapper.key)).in(file_.path());
    // A counter or the state of a generator may be next to it; a dotted name belongs to a parameter.
    if (is_value_(other.second) &&
        label(other.first).substr(0, kMaxTensorNameBytes).find('.') != std::string_view::npos)
      throw unsupported(fmt::format(
          "contains tensors, and a mapping with more tensors under \"{}\": which one is the state dict?", wrapper.key));
    if (std::any_of(wrappers.begin(), wrappers.end(),
                    [&](const Wrapper* one) { return one->is_average && one->key == label(other.first); }))
      averages.add(label(other.first));
    else if (!add_description(label(other.first)))
      aside_.add(label(other.first));
  }
  refuse_rivals(top, wrappers);
  // If a description is next to the state dict, or this program wrote the file, the key is expected.
  if (result_.descriptions.empty() && file_.metadata().empty())
    result_.warnings.push_back(fmt::format("read the state dict under \"{}{}\"{}", above, wrapper.key,
                                           wrapper.is_average ? ", an average of the weights" : ""));
  result_.left_out = averages.text();
  if (!averages.empty())
    result_.warnings.push_back(fmt::format(
        "left out an average of the weights, under {}; to convert it, save it in a separate file", averages.text()));
  return found->second;
}

/// \returns whether `key` describes the state dict next to it.
bool Finder::add_description(std::string_view key) {
  if (key != kShardedMetadataKey && key != kGqaQkvMetadataKey) return false;
  const std::pair<std::string, std::string> entry(key, "");
  FileMetadata& known = result_.descriptions;
  if (std::find(known.begin(), known.end(), entry) == known.end()) known.push_back(entry);
  return true;
}

/// Rejects weights at deeper levels, which would otherwise be lost silently.
void Finder::refuse_deeper(const Pairs& pairs) {
  ShortList deeper;
  for (const auto& [key, value] : pairs)
    if (!is_value_(value) && !label(key).ends_with(kExtraState) && holds_values(value)) deeper.add(label(key));
  if (!deeper.empty())
    throw unsupported("contains tensors at a deeper level, under " + deeper.text() + ", instead of in one state dict");
}

/// Whether `node` is a tensor or contains one. Visits each node only once, over all calls.
bool Finder::holds_values(PickleRef node) {
  std::vector<PickleRef> open{node};
  while (!open.empty()) {
    const PickleRef next = open.back();
    open.pop_back();
    if (is_value_(next)) return true;
    if (seen_[next]) continue;
    seen_[next] = true;
    if (pickle_.kind(next) == PickleKind::kObject) {
      if (!is_mapping(pickle_, next)) continue;
      open.push_back(pickle_.args(next));
    }
    for (const PickleRef item : pickle_.items(next)) open.push_back(item);
    for (const auto& [key, value] : pickle_.pairs(next)) open.push_back(value);
  }
  return false;
}

void Finder::refuse_twin_names(const Pairs& pairs) const {
  std::vector<PickleRef> keys;
  for (const auto& [key, value] : pairs)
    if (is_value_(value) && pickle_.kind(key) == PickleKind::kString) keys.push_back(key);
  refuse_twins(pickle_, std::move(keys), "the state dict", file_.path());
}

}  // namespace

StateDict find_state_dict(const TorchFile& file, const std::function<bool(PickleRef)>& is_value) {
  return Finder(file, is_value).find();
}

std::string keys_beside_state_dict(const TorchFile& file) {
  const auto is_value = [&](PickleRef node) { return file.is_tensor(node) || is_xser_reference(file.pickle(), node); };
  return find_state_dict(file, is_value).left_out;
}

bool is_average_key(std::string_view key) {
  return std::any_of(std::begin(kWrappers), std::end(kWrappers),
                     [&](const Wrapper& wrapper) { return wrapper.is_average && wrapper.key == key; });
}

bool is_xser_reference(const Pickle& pickle, PickleRef node) {
  return pickle.is_object_of(node, "torch_xla.utils.serialization", "TensorReference");
}

void StorageUse::add(const TorchTensor& tensor) {
  const std::uint64_t elem_bytes = bits(tensor.dtype) / 8;
  std::uint64_t span_bytes = tensor.size_bytes;
  if (!tensor.strides.empty()) {
    span_bytes = elem_bytes;
    for (std::size_t dim = 0; dim < tensor.shape.size(); ++dim)
      span_bytes += (tensor.shape[dim] - 1) * tensor.strides[dim] * elem_bytes;
  }
  ranges_.push_back({tensor.storage, tensor.offset_bytes, tensor.offset_bytes + span_bytes});
}

void StorageUse::finish(const TorchFile& file) {
  std::sort(ranges_.begin(), ranges_.end());
  std::uint64_t used_to = 0;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Range& range = ranges_[i];
    if (i == 0 || ranges_[i - 1].storage != range.storage) {
      unused_bytes_ += file.storages()[range.storage].size_bytes;
      used_to = 0;
    }
    const std::uint64_t from = std::max(range.begin, used_to);
    if (range.end <= from) continue;
    used_bytes_ += range.end - from;
    unused_bytes_ -= range.end - from;
    used_to = range.end;
  }
  ranges_.clear();
}

void StorageUse::warn(std::vector<std::string>& warnings) const {
  if (unused_bytes_ > used_bytes_)
    warnings.push_back(
        fmt::format("contains {} that no tensor uses: slices were saved with the entire storage they are views of",
                    format_bytes(unused_bytes_)));
}

Container read_torch(const Source& source, const std::filesystem::path& path) {
  const TorchFile file = read_torch_file(source, path);
  const Pickle& pickle = file.pickle();
  StateDict state_dict =
      find_state_dict(file, [&](PickleRef node) { return file.is_tensor(node) || is_xser_reference(pickle, node); });
  Container container{
      path, file.size_bytes(), {}, file.metadata(), std::move(state_dict.warnings), {{path, file.size_bytes()}}};
  for (auto& entry : state_dict.descriptions) container.metadata.push_back(std::move(entry));
  StorageUse use;
  for (const auto& [name, node] : state_dict.values) {
    if (is_xser_reference(pickle, node))
      throw Error(ErrorKind::kBadInput, "is not in this file, which only refers to it (xser)")
          .in(path)
          .tensor(name)
          .hint("the folder " + xser_tensors_folder(path).filename().string() + " belongs next to the file");
    TorchTensor tensor = file.tensor(node, name);
    use.add(tensor);
    container.tensors.push_back(std::move(tensor));
  }
  use.finish(file);
  use.warn(container.warnings);
  return container;
}

}  // namespace reshard
