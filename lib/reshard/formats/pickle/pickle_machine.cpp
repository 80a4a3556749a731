#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "reshard/base/strings.h"
#include "reshard/formats/pickle/pickle.h"
#include "reshard/formats/pickle/pickle_calls.h"
#include "reshard/formats/pickle/pickle_cursor.h"
#include "reshard/formats/pickle/pickle_globals.h"

namespace reshard {

/// Interprets a pickle with a stack, marks in it, a memo, and a table of opcodes.
class PickleMachine {
 public:
  PickleMachine(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes)
      : cursor_(stream, path, offset_bytes), ints_(slots_for(stream.size()), kNoNode), tuples_(ints_) {}

  void expect(std::size_t nodes) { pickle_.nodes_.reserve(nodes); }
  Pickle run();

 private:
  using Node = Pickle::Node;
  using Nodes = std::vector<PickleRef>;
  struct Opcode {
    unsigned char code;
    void (*run)(PickleMachine&);
  };
  static const Opcode kOpcodes[];

  static std::size_t slots_for(std::size_t stream_bytes);

  // The stack. Items below the last mark cannot be accessed until the mark is popped.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleRef top() const;
  PickleRef pop();
  Nodes pop_last(std::size_t count);
  Nodes pop_mark();
  void push(PickleRef node);
  void mark();
  void pop_any();

  PickleRef add(const Node& node);
  PickleRef add_text(PickleKind kind, std::string_view text);
  PickleRef add_global(std::string_view module, std::string_view name);
  void push_new(PickleKind kind) { push(add({.kind = kind})); }
  void push_none();
  void push_bool(bool value);
  void push_int(std::int64_t value);
  void push_real(double value);
  void push_text(PickleKind kind, std::string_view text) { push(add_text(kind, text)); }
  void push_filled(PickleKind kind, const Nodes& items);
  void push_tuple(const Nodes& items);
  PickleRef* known_tuple(const Nodes& items);
  void push_tuple_of(std::size_t size);
  void push_object(PickleRef callee, PickleRef args, PickleUse use);
  void push_persistent(PickleRef id);
  void push_long(std::string_view bytes);
  void push_decoded(bool (*decode)(std::string_view, std::string&));

  std::vector<PicklePair>& own_pairs(Node& target);
  Pickle::Filled& filled(Node& object);
  void count_links(std::size_t more);
  void append(PickleKind target_kind, const Nodes& items);
  void set_items(const Nodes& keys_and_values);
  void memoize(std::uint64_t index);
  void recall(std::uint64_t index);
  std::uint64_t index_line();

  void proto();
  void int_line();
  void long_line();
  void float_line();
  PickleRef global_line();
  void stack_global();
  void reduce(PickleUse use);
  void build_with_keywords();
  void inst();
  void obj();
  void build();
  void refuse(const char* what);

  PickleCursor cursor_;
  Pickle pickle_;
  Nodes stack_;
  std::vector<std::size_t> marks_;
  Nodes memo_;
  // Immutable nodes are reused: metadata of many chunks consist of millions of small numbers.
  PickleRef none_ = kNoNode;
  Nodes ints_;    // last node of each hash; the size is a power of two
  Nodes tuples_;  // same for tuples of numbers
  std::uint64_t memoized_ = 0;
  std::size_t links_ = 0;
};

namespace {

constexpr unsigned kNewestProtocol = 5;
constexpr std::uint64_t kMixer = 0x9e3779b97f4a7c15;  // golden ratio: spreads multiples of powers of two
// A tensor of a state dict takes about ten nodes and twenty links between nodes; a chunk of a distributed checkpoint
// takes ten to twenty nodes and thirty links. The limits allow 2.5 million chunks in about 1 GiB of memory. A model of
// 405 billion parameters with its optimizer has 1.75 million chunks on 512 ranks.
constexpr std::size_t kMaxNodes = std::size_t{3} << 24;
constexpr std::size_t kMaxLinks = std::size_t{5} << 24;
constexpr std::size_t kMaxStack = std::size_t{1} << 22;  // picklers push a thousand items at a time, or one tuple

}  // namespace

/// Small for short pickles: a checkpoint may have a million items, each with its own pickle.
std::size_t PickleMachine::slots_for(std::size_t stream_bytes) {
  constexpr std::size_t kFewest = 16, kMost = 65536;
  return std::bit_floor(std::clamp(stream_bytes / kFewest, kFewest, kMost));
}

PickleRef PickleMachine::top() const {
  if (stack_.size() <= floor()) throw cursor_.bad("pops from an empty stack");
  return stack_.back();
}

PickleRef PickleMachine::pop() {
  const PickleRef node = top();
  stack_.pop_back();
  return node;
}

PickleMachine::Nodes PickleMachine::pop_mark() {
  if (marks_.empty()) throw cursor_.bad("refers to a MARK that does not exist");
  Nodes items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

void PickleMachine::push(PickleRef node) {
  if (stack_.size() == kMaxStack) throw cursor_.unsupported("pushes more onto its stack than any checkpoint does");
  stack_.push_back(node);
}

void PickleMachine::mark() {
  if (marks_.size() == kMaxStack) throw cursor_.unsupported("pushes more onto its stack than any checkpoint does");
  marks_.push_back(stack_.size());
}

/// POP removes a mark if nothing is above it.
void PickleMachine::pop_any() {
  if (stack_.size() <= floor() && !marks_.empty())
    marks_.pop_back();
  else
    pop();
}

PickleRef PickleMachine::add(const Node& node) {
  if (pickle_.nodes_.size() == kMaxNodes)
    throw cursor_.unsupported("has more than " + std::to_string(kMaxNodes) + " objects")
        .hint("save the state dict alone, without the objects around it");
  pickle_.nodes_.push_back(node);
  return static_cast<PickleRef>(pickle_.nodes_.size() - 1);
}

PickleRef PickleMachine::add_global(std::string_view module, std::string_view name) {
  if (module.size() > kMaxPickleNameBytes || name.size() > kMaxPickleNameBytes)
    throw cursor_.bad("imports a name of " + std::to_string(std::max(module.size(), name.size())) + " bytes");
  const PickleGlobal global{python3_module(module), name};
  if (is_code(global))
    throw refusal(cursor_,
                  "names " + printable(fmt::format("{}.{}", global.module, global.name)) + ", which runs code");
  pickle_.globals_.push_back(global);
  Node node{.kind = PickleKind::kGlobal};
  node.integer = static_cast<std::int64_t>(pickle_.globals_.size() - 1);
  return add(node);
}

void PickleMachine::push_bool(bool value) {
  Node node{.kind = PickleKind::kBool};
  node.integer = value ? 1 : 0;
  push(add(node));
}

void PickleMachine::push_none() {
  if (none_ == kNoNode) none_ = add({.kind = PickleKind::kNone});
  push(none_);
}

void PickleMachine::push_int(std::int64_t value) {
  PickleRef& known = ints_[(static_cast<std::uint64_t>(value) * kMixer >> 32) & (ints_.size() - 1)];
  if (known == kNoNode || pickle_.nodes_[known].integer != value) {
    Node node{.kind = PickleKind::kInt};
    node.integer = value;
    known = add(node);
  }
  push(known);
}

void PickleMachine::push_real(double value) {
  Node node{.kind = PickleKind::kFloat};
  node.real = value;
  push(add(node));
}

PickleRef PickleMachine::add_text(PickleKind kind, std::string_view text) {
  Node node{.kind = kind, .number = static_cast<std::uint32_t>(text.size())};
  node.text = text.data();
  return add(node);
}

/// Pushes a list, dict or set with its first items.
void PickleMachine::push_filled(PickleKind kind, const Nodes& items) {
  push_new(kind);
  if (kind == PickleKind::kDict)
    set_items(items);
  else
    append(kind, items);
}

void PickleMachine::push_tuple(const Nodes& items) {
  auto& all = pickle_.tuple_items_;
  count_links(items.size());
  PickleRef* const known = known_tuple(items);
  if (known != nullptr && *known != kNoNode && std::ranges::equal(pickle_.items(*known), items)) return push(*known);
  push(add({.kind = PickleKind::kTuple,
            .parts = {.first = static_cast<std::uint32_t>(all.size()),
                      .second = static_cast<std::uint32_t>(items.size())}}));
  all.insert(all.end(), items.begin(), items.end());
  if (known != nullptr) *known = top();
}

/// Returns the slot for a tuple with these items if it is immutable: a few numbers, tuples of these, or empty. Returns
/// null for other tuples, which may contain mutable items.
PickleRef* PickleMachine::known_tuple(const Nodes& items) {
  constexpr std::size_t kMostItems = 4;
  const auto is_int = [&](PickleRef item) { return pickle_.kind(item) == PickleKind::kInt; };
  const auto is_constant = [&](PickleRef item) {
    if (pickle_.kind(item) != PickleKind::kTuple) return is_int(item);
    const auto inner = pickle_.items(item);
    return inner.size() <= kMostItems && std::all_of(inner.begin(), inner.end(), is_int);
  };
  if (items.size() > kMostItems || !std::all_of(items.begin(), items.end(), is_constant)) return nullptr;
  std::uint64_t hash = items.size();
  for (const PickleRef item : items) hash = (hash ^ item) * kMixer;
  return &tuples_[hash >> 32 & (tuples_.size() - 1)];
}

PickleMachine::Nodes PickleMachine::pop_last(std::size_t count) {
  Nodes items(count);
  for (std::size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

void PickleMachine::push_tuple_of(std::size_t size) {
  push_tuple(pop_last(size));
}

void PickleMachine::push_object(PickleRef callee, PickleRef args, PickleUse use) {
  const PickleRef unknown = validate_call(pickle_, cursor_, callee, args, use);
  push(add({.kind = PickleKind::kObject, .number = callee, .parts = {.first = args}}));
  if (unknown != kNoNode) pickle_.unknown_objects_.push_back({top(), unknown});
}

void PickleMachine::push_persistent(PickleRef id) {
  push(add({.kind = PickleKind::kPersistentId, .parts = {.first = id}}));
}

void PickleMachine::push_long(std::string_view bytes) {
  const std::string_view shortest = shortest_integer(bytes);
  if (shortest.size() <= sizeof(std::int64_t))
    push_int(small_integer(shortest));
  else
    push_text(PickleKind::kBigInt, shortest);
}

void PickleMachine::push_decoded(bool (*decode)(std::string_view, std::string&)) {
  std::string text;
  if (!decode(cursor_.line(), text)) throw cursor_.bad("has a string with invalid quotes or escapes");
  pickle_.decoded_.push_back(std::move(text));
  push_text(PickleKind::kString, pickle_.decoded_.back());
}

void PickleMachine::count_links(std::size_t more) {
  if (more > kMaxLinks - links_)
    throw cursor_.unsupported("links its objects more than " + std::to_string(kMaxLinks) +
                              " times, the supported maximum");
  links_ += more;
}

/// Appends to the list or set at the top of the stack, or to an object, which may be either.
void PickleMachine::append(PickleKind target_kind, const Nodes& items) {
  Node& target = pickle_.nodes_[top()];
  if ((target.kind != target_kind && target.kind != PickleKind::kObject) || is_read_by_getattr(pickle_, top()))
    throw cursor_.bad("appends to " + pickle_.describe(top()));
  count_links(items.size());
  if (items.empty()) return;
  std::uint32_t& place = target.kind == PickleKind::kObject ? filled(target).items : target.parts.first;
  if (place == UINT32_MAX) {
    place = static_cast<std::uint32_t>(pickle_.lists_.size());
    pickle_.lists_.emplace_back();
  }
  auto& list = pickle_.lists_[place];
  list.insert(list.end(), items.begin(), items.end());
}

void PickleMachine::set_items(const Nodes& keys_and_values) {
  Node& target = pickle_.nodes_[top()];
  if ((target.kind != PickleKind::kDict && target.kind != PickleKind::kObject) || is_read_by_getattr(pickle_, top()))
    throw cursor_.bad("sets items of " + pickle_.describe(top()));
  if (keys_and_values.size() % 2 != 0) throw cursor_.bad("sets a key without a value");
  count_links(keys_and_values.size());
  if (keys_and_values.empty()) return;
  const auto add_to = [&](std::vector<PicklePair>& pairs) {
    for (std::size_t i = 0; i < keys_and_values.size(); i += 2)
      pairs.emplace_back(keys_and_values[i], keys_and_values[i + 1]);
  };
  // Dicts that are set at once, such as attributes of objects, share one vector.
  if (target.kind == PickleKind::kDict && target.parts.first == UINT32_MAX) {
    target.parts = {static_cast<std::uint32_t>(pickle_.dict_pairs_.size()),
                    static_cast<std::uint32_t>(keys_and_values.size() / 2)};
    add_to(pickle_.dict_pairs_);
  } else {
    add_to(own_pairs(target));
  }
}

/// Returns the pairs of an object, or of a dict that is not set at once.
std::vector<PicklePair>& PickleMachine::own_pairs(Node& target) {
  std::uint32_t& place = target.kind == PickleKind::kObject ? filled(target).pairs : target.parts.first;
  const bool was_set_at_once = target.kind == PickleKind::kDict && target.parts.second != UINT32_MAX;
  if (place != UINT32_MAX && !was_set_at_once) return pickle_.dicts_[place];
  auto& pairs = pickle_.dicts_.emplace_back();
  if (was_set_at_once) {
    const auto first = pickle_.dict_pairs_.begin() + target.parts.first;
    pairs.assign(first, first + target.parts.second);
    target.parts.second = UINT32_MAX;
  }
  place = static_cast<std::uint32_t>(pickle_.dicts_.size() - 1);
  return pairs;
}

Pickle::Filled& PickleMachine::filled(Node& object) {
  if (!object.is_filled) {
    pickle_.filled_.push_back({.callee = object.number});
    object.number = static_cast<std::uint32_t>(pickle_.filled_.size() - 1);
    object.is_filled = true;
  }
  return pickle_.filled_[object.number];
}

/// Picklers number their memo from 0, with an opcode of at least one byte each, so no valid index exceeds the position.
void PickleMachine::memoize(std::uint64_t index) {
  if (index > std::min<std::uint64_t>(cursor_.position(), kMaxLinks))
    throw cursor_.bad("numbers its memo " + std::to_string(index) + ", which no pickler does");
  const PickleRef node = top();
  if (index >= memo_.size()) memo_.resize(index + 1, kNoNode);
  if (memo_[index] == kNoNode) ++memoized_;
  memo_[index] = node;
}

void PickleMachine::recall(std::uint64_t index) {
  if (index >= memo_.size() || memo_[index] == kNoNode)
    throw cursor_.bad("reads memo " + std::to_string(index) + ", which was never set");
  push(memo_[index]);
}

// One function for each opcode, or for a few.

std::uint64_t PickleMachine::index_line() {
  const auto index = parse_unsigned(cursor_.line());
  if (!index) throw cursor_.bad("has a memo index that is not a number");
  return *index;
}

void PickleMachine::proto() {
  const auto version = cursor_.number<std::uint8_t>();
  if (version > kNewestProtocol)
    throw cursor_.unsupported("uses protocol " + std::to_string(version) + ", newer than any supported one");
}

/// INT is also how protocol 0 writes bools.
void PickleMachine::int_line() {
  const std::string_view line = cursor_.line();
  if (line == "00" || line == "01") return push_bool(line == "01");
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (end != line.data() + line.size() || line.empty()) throw cursor_.bad("has an int that is not a number");
  if (error == std::errc::result_out_of_range) return push_text(PickleKind::kBigInt, line);
  if (error != std::errc()) throw cursor_.bad("has an int that is not a number");
  push_int(value);
}

void PickleMachine::long_line() {
  std::string_view digits = cursor_.line();
  if (digits.ends_with('L')) digits.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = !digits.empty() && end == digits.data() + digits.size();
  if (!whole || error == std::errc::invalid_argument) throw cursor_.bad("has an int that is not a number");
  if (error == std::errc::result_out_of_range)
    push_text(PickleKind::kBigInt, digits);
  else
    push_int(value);
}

void PickleMachine::float_line() {
  const std::string_view line = cursor_.line();
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end != line.data() + line.size()) throw cursor_.bad("has a float that is not a number");
  push_real(value);
}

PickleRef PickleMachine::global_line() {
  const std::string_view module = cursor_.line();
  const std::string_view name = cursor_.line();
  return add_global(module, name);
}

void PickleMachine::stack_global() {
  const PickleRef name = pop();
  const PickleRef module = pop();
  if (pickle_.kind(name) != PickleKind::kString || pickle_.kind(module) != PickleKind::kString)
    throw cursor_.bad("imports a name that is not a string");
  push(add_global(pickle_.text(module), pickle_.text(name)));
}

void PickleMachine::reduce(PickleUse use) {
  const PickleRef args = pop();
  push_object(pop(), args, use);
}

/// NEWOBJ_EX: drops keyword arguments; no supported object has any.
void PickleMachine::build_with_keywords() {
  const PickleRef keywords = pop();
  const bool has_none = pickle_.kind(keywords) == PickleKind::kDict && pickle_.pairs(keywords).empty();
  reduce(has_none ? PickleUse::kBuilt : PickleUse::kCalled);
}

void PickleMachine::inst() {
  const PickleRef callee = global_line();
  push_tuple(pop_mark());
  push_object(callee, pop(), PickleUse::kCalled);
}

void PickleMachine::obj() {
  Nodes items = pop_mark();
  if (items.empty()) throw cursor_.bad("creates an object without a class");
  const PickleRef callee = items.front();
  items.erase(items.begin());
  push_tuple(items);
  push_object(callee, pop(), PickleUse::kCalled);
}

void PickleMachine::build() {
  const PickleRef state = pop();
  Node& object = pickle_.nodes_[top()];
  if (object.kind != PickleKind::kObject || is_read_by_getattr(pickle_, top()))
    throw cursor_.bad("sets the attributes of " + pickle_.describe(top()));
  if (object.parts.second != kNoNode) throw cursor_.bad("sets the attributes of an object twice");
  object.parts.second = state;
}

void PickleMachine::refuse(const char* what) {
  throw cursor_.unsupported(std::string("uses ") + what + ", which no checkpoint does");
}

using M = PickleMachine;

// In the order of Lib/pickletools.py. The main loop handles STOP.
const PickleMachine::Opcode PickleMachine::kOpcodes[] = {
    {'I', [](M& m) { m.int_line(); }},
    {'J', [](M& m) { m.push_int(m.cursor_.number<std::int32_t>()); }},
    {'K', [](M& m) { m.push_int(m.cursor_.number<std::uint8_t>()); }},
    {'M', [](M& m) { m.push_int(m.cursor_.number<std::uint16_t>()); }},
    {'L', [](M& m) { m.long_line(); }},
    {0x8a, [](M& m) { m.push_long(m.cursor_.take_sized<std::uint8_t>()); }},
    {0x8b, [](M& m) { m.push_long(m.cursor_.take_sized<std::uint32_t>()); }},
    {'S', [](M& m) { m.push_decoded(decode_quoted); }},
    {'T', [](M& m) { m.push_text(PickleKind::kString, m.cursor_.take_sized<std::uint32_t>()); }},
    {'U', [](M& m) { m.push_text(PickleKind::kString, m.cursor_.take_sized<std::uint8_t>()); }},
    {'B', [](M& m) { m.push_text(PickleKind::kBytes, m.cursor_.take_sized<std::uint32_t>()); }},
    {'C', [](M& m) { m.push_text(PickleKind::kBytes, m.cursor_.take_sized<std::uint8_t>()); }},
    {0x8e, [](M& m) { m.push_text(PickleKind::kBytes, m.cursor_.take_sized<std::uint64_t>()); }},
    {0x96, [](M& m) { m.push_text(PickleKind::kBytes, m.cursor_.take_sized<std::uint64_t>()); }},
    {'N', [](M& m) { m.push_none(); }},
    {0x88, [](M& m) { m.push_bool(true); }},
    {0x89, [](M& m) { m.push_bool(false); }},
    {'V', [](M& m) { m.push_decoded(decode_raw_unicode); }},
    {0x8c, [](M& m) { m.push_text(PickleKind::kString, m.cursor_.take_sized<std::uint8_t>()); }},
    {'X', [](M& m) { m.push_text(PickleKind::kString, m.cursor_.take_sized<std::uint32_t>()); }},
    {0x8d, [](M& m) { m.push_text(PickleKind::kString, m.cursor_.take_sized<std::uint64_t>()); }},
    {'F', [](M& m) { m.float_line(); }},
    {'G', [](M& m) { m.push_real(m.cursor_.big_endian_double()); }},
    {']', [](M& m) { m.push_new(PickleKind::kList); }},
    {'a', [](M& m) { m.append(PickleKind::kList, {m.pop()}); }},
    {'e', [](M& m) { m.append(PickleKind::kList, m.pop_mark()); }},
    {'l', [](M& m) { m.push_filled(PickleKind::kList, m.pop_mark()); }},
    {')', [](M& m) { m.push_tuple({}); }},
    {'t', [](M& m) { m.push_tuple(m.pop_mark()); }},
    {0x85, [](M& m) { m.push_tuple_of(1); }},
    {0x86, [](M& m) { m.push_tuple_of(2); }},
    {0x87, [](M& m) { m.push_tuple_of(3); }},
    {'}', [](M& m) { m.push_new(PickleKind::kDict); }},
    {'d', [](M& m) { m.push_filled(PickleKind::kDict, m.pop_mark()); }},
    {'s', [](M& m) { m.set_items(m.pop_last(2)); }},
    {'u', [](M& m) { m.set_items(m.pop_mark()); }},
    {0x8f, [](M& m) { m.push_new(PickleKind::kSet); }},
    {0x90, [](M& m) { m.append(PickleKind::kSet, m.pop_mark()); }},
    {0x91, [](M& m) { m.push_filled(PickleKind::kSet, m.pop_mark()); }},
    {'0', [](M& m) { m.pop_any(); }},
    {'2', [](M& m) { m.push(m.top()); }},
    {'(', [](M& m) { m.mark(); }},
    {'1', [](M& m) { m.pop_mark(); }},
    {'g', [](M& m) { m.recall(m.index_line()); }},
    {'h', [](M& m) { m.recall(m.cursor_.number<std::uint8_t>()); }},
    {'j', [](M& m) { m.recall(m.cursor_.number<std::uint32_t>()); }},
    {'p', [](M& m) { m.memoize(m.index_line()); }},
    {'q', [](M& m) { m.memoize(m.cursor_.number<std::uint8_t>()); }},
    {'r', [](M& m) { m.memoize(m.cursor_.number<std::uint32_t>()); }},
    {0x94, [](M& m) { m.memoize(m.memoized_); }},
    {'c', [](M& m) { m.push(m.global_line()); }},
    {0x93, [](M& m) { m.stack_global(); }},
    {'R', [](M& m) { m.reduce(PickleUse::kCalled); }},
    {'b', [](M& m) { m.build(); }},
    {'i', [](M& m) { m.inst(); }},
    {'o', [](M& m) { m.obj(); }},
    {0x81, [](M& m) { m.reduce(PickleUse::kBuilt); }},
    {0x92, [](M& m) { m.build_with_keywords(); }},
    {0x80, [](M& m) { m.proto(); }},
    {0x95, [](M& m) { m.cursor_.number<std::uint64_t>(); }},  // FRAME: its length is not needed
    {'P', [](M& m) { m.push_persistent(m.add_text(PickleKind::kString, m.cursor_.line())); }},
    {'Q', [](M& m) { m.push_persistent(m.pop()); }},
    {0x82, [](M& m) { m.refuse("extension codes"); }},
    {0x83, [](M& m) { m.refuse("extension codes"); }},
    {0x84, [](M& m) { m.refuse("extension codes"); }},
    {0x97, [](M& m) { m.refuse("buffers outside the pickle"); }},
    {0x98, [](M& m) { m.refuse("buffers outside the pickle"); }},
};

Pickle PickleMachine::run() {
  constexpr unsigned char kStop = '.';
  static const auto kByCode = [] {
    std::array<void (*)(PickleMachine&), 256> table{};
    for (const Opcode& opcode : kOpcodes) table[opcode.code] = opcode.run;
    return table;
  }();
  for (unsigned char code = cursor_.opcode(); code != kStop; code = cursor_.opcode()) {
    if (!kByCode[code]) throw cursor_.bad("has the byte " + std::to_string(code) + " instead of an opcode");
    kByCode[code](*this);
  }
  pickle_.root_ = pop();
  if (!stack_.empty() || !marks_.empty()) throw cursor_.bad("ends with objects left on its stack");
  pickle_.size_bytes_ = cursor_.position();
  return std::move(pickle_);
}

Pickle read_pickle(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes,
                   std::size_t expected_nodes) {
  PickleMachine machine(stream.substr(0, kMaxPickleBytes), path, offset_bytes);
  machine.expect(std::min(expected_nodes, kMaxNodes));
  return machine.run();
}

}  // namespace reshard
