// The machine behind read_pickle: a stack, marks in it, a memo, and a table of opcodes.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reshard/formats/pickle/pickle_cursor.h"

namespace reshard {

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

  // The stack. What lies below the last mark is out of reach until the mark is popped.
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
  void push_object(PickleRef callee, PickleRef args);
  void push_persistent(PickleRef id);
  void push_long(std::string_view bytes);
  void push_decoded(bool (*decode)(std::string_view, std::string&));

  std::vector<PicklePair>& own_pairs(Node& target);
  Pickle::Filled& filled(Node& object);
  void count_links(std::size_t more);
  void append(PickleKind target_kind, const Nodes& items);
  void set_items(const Nodes& keys_and_values);
  void check_call(PickleRef callee, PickleRef args);
  bool is_nested_class(PickleRef callee) const;
  bool reads_inert_attribute(PickleRef callee, PickleRef args) const;
  void check_global(PickleRef callee);
  void memoize(std::uint64_t index);
  void recall(std::uint64_t index);
  std::uint64_t index_line();

  void proto();
  void int_line();
  void long_line();
  void float_line();
  PickleRef global_line();
  void stack_global();
  void reduce();
  void reduce_with_keywords();
  void inst();
  void obj();
  void build();
  void refuse(const char* what);

  PickleCursor cursor_;
  Pickle pickle_;
  Nodes stack_;
  std::vector<std::size_t> marks_;
  Nodes memo_;
  // What cannot change needs no second node: metadata of many chunks are millions of small numbers.
  PickleRef none_ = kNoNode;
  Nodes ints_;    // the last one of each hash; a power of two
  Nodes tuples_;  // the same for those of numbers
  std::uint64_t memoized_ = 0;
  std::size_t links_ = 0;
  std::set<std::pair<std::string_view, std::string_view>> unknown_classes_;
};

}  // namespace reshard
