#include <array>
#include <charconv>

#include "reshard/base/strings.h"
#include "reshard/formats/pickle_machine.h"

namespace reshard {
namespace {

constexpr unsigned kNewestProtocol = 5;

}  // namespace

std::uint64_t PickleMachine::index_line() {
  const auto index = parse_unsigned(cursor_.line());
  if (!index) throw cursor_.bad("has a memo index that is no number");
  return *index;
}

void PickleMachine::proto() {
  const auto version = cursor_.number<std::uint8_t>();
  if (version > kNewestProtocol)
    throw cursor_.unsupported("is of protocol " + std::to_string(version) + ", newer than any that is known");
}

/// INT is also how protocol 0 writes bools.
void PickleMachine::int_line() {
  const std::string_view line = cursor_.line();
  if (line == "00" || line == "01") return push_bool(line == "01");
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (end != line.data() + line.size() || line.empty()) throw cursor_.bad("has an int that is no number");
  if (error == std::errc::result_out_of_range) return push_text(PickleKind::kBigInt, line);
  if (error != std::errc()) throw cursor_.bad("has an int that is no number");
  push_int(value);
}

void PickleMachine::long_line() {
  std::string_view digits = cursor_.line();
  if (digits.ends_with('L')) digits.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = !digits.empty() && end == digits.data() + digits.size();
  if (!whole || error == std::errc::invalid_argument) throw cursor_.bad("has an int that is no number");
  if (error == std::errc::result_out_of_range)
    push_text(PickleKind::kBigInt, digits);
  else
    push_int(value);
}

void PickleMachine::float_line() {
  const std::string_view line = cursor_.line();
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end != line.data() + line.size()) throw cursor_.bad("has a float that is no number");
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
    throw cursor_.bad("imports something whose name is no string");
  push(add_global(pickle_.text(module), pickle_.text(name)));
}

/// REDUCE and NEWOBJ: for what is made, they are the same.
void PickleMachine::reduce() {
  const PickleRef args = pop();
  push_object(pop(), args);
}

/// NEWOBJ_EX: the keyword arguments stay away; no object that is understood has any.
void PickleMachine::reduce_with_keywords() {
  pop();
  reduce();
}

void PickleMachine::inst() {
  const PickleRef callee = global_line();
  push_tuple(pop_mark());
  push_object(callee, pop());
}

void PickleMachine::obj() {
  Nodes items = pop_mark();
  if (items.empty()) throw cursor_.bad("makes an object of no class");
  const PickleRef callee = items.front();
  items.erase(items.begin());
  push_tuple(items);
  push_object(callee, pop());
}

void PickleMachine::build() {
  const PickleRef state = pop();
  Node& object = pickle_.nodes_[top()];
  if (object.kind != PickleKind::kObject) throw cursor_.bad("sets the attributes of " + pickle_.describe(top()));
  if (object.state != kNoNode) throw cursor_.bad("sets the attributes of an object twice");
  object.state = state;
}

void PickleMachine::refuse(const char* what) {
  throw cursor_.unsupported(std::string("uses ") + what + ", which no checkpoint does");
}

using M = PickleMachine;

// In the order of Lib/pickletools.py's own list; STOP is the loop's.
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
    {'N', [](M& m) { m.push_new(PickleKind::kNone); }},
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
    {'R', [](M& m) { m.reduce(); }},
    {'b', [](M& m) { m.build(); }},
    {'i', [](M& m) { m.inst(); }},
    {'o', [](M& m) { m.obj(); }},
    {0x81, [](M& m) { m.reduce(); }},
    {0x92, [](M& m) { m.reduce_with_keywords(); }},
    {0x80, [](M& m) { m.proto(); }},
    {0x95, [](M& m) { m.cursor_.number<std::uint64_t>(); }},  // FRAME: its length tells nothing more
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
    if (!kByCode[code]) throw cursor_.bad("has the byte " + std::to_string(code) + " where an opcode must be");
    kByCode[code](*this);
  }
  pickle_.root_ = pop();
  if (!stack_.empty() || !marks_.empty()) throw cursor_.bad("stops with something left on its stack");
  pickle_.size_bytes_ = cursor_.position();
  for (const auto& [module, name] : unknown_classes_)
    pickle_.unknown_classes_.push_back(std::string(module) + "." + std::string(name));
  return std::move(pickle_);
}

Pickle read_pickle(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes) {
  return PickleMachine(stream.substr(0, kMaxPickleBytes), path, offset_bytes).run();
}

}  // namespace reshard
