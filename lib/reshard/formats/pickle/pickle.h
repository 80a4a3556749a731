// Pickles (Python's Lib/pickletools.py, protocols 0 to 5) as trees of nodes. Nothing is imported and nothing is called:
// what Python would make by a call becomes a node that says which call.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reshard/base/error.h"

namespace reshard {

/// The longest stream that is read: the pickle of two million tensors. A stream takes at most a few bytes of memory for
/// each of its own, but for nodes, which have a limit of their own.
inline constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{512} << 20;

using PickleRef = std::uint32_t;  // a node of one Pickle
inline constexpr PickleRef kNoNode = UINT32_MAX;

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // does not fit 64 bits
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,        // a name that Python would import
  kObject,        // what Python would make by calling `callee` with `args`
  kPersistentId,  // something outside the pickle, named by `args`
};

struct PickleGlobal {
  std::string_view module;  // by its name in Python 3
  std::string_view name;
};

using PicklePair = std::pair<PickleRef, PickleRef>;

/// The nodes of one pickle. Nodes may be shared, and a list, dict, set or object may hold itself: whoever walks must
/// remember where it was. Asking a node for what its kind does not have gives zero, "", no node or nothing.
class Pickle {
 public:
  PickleRef root() const { return root_; }
  std::uint32_t num_nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
  /// Of the stream, from the first byte to STOP.
  std::uint64_t size_bytes() const { return size_bytes_; }

  PickleKind kind(PickleRef node) const { return nodes_[node].kind; }
  /// kBool, kInt.
  std::int64_t integer(PickleRef node) const {
    const bool has = kind(node) == PickleKind::kBool || kind(node) == PickleKind::kInt;
    return has ? nodes_[node].integer : 0;
  }
  /// kFloat.
  double real(PickleRef node) const { return kind(node) == PickleKind::kFloat ? nodes_[node].real : 0; }
  /// kString: UTF-8, unless Python 2 wrote it. kBytes. kBigInt: little-endian bytes, or decimal digits in protocol 0.
  std::string_view text(PickleRef node) const {
    const Node& it = nodes_[node];
    return has_text(it.kind) ? std::string_view(it.text, it.number) : std::string_view();
  }
  /// kGlobal.
  PickleGlobal global(PickleRef node) const;
  /// kObject: the global that is called.
  PickleRef callee(PickleRef node) const {
    const Node& it = nodes_[node];
    if (it.kind != PickleKind::kObject) return kNoNode;
    return it.is_filled ? filled_[it.number].callee : it.number;
  }
  /// kObject: a tuple. kPersistentId: whatever names it.
  PickleRef args(PickleRef node) const { return has_args(kind(node)) ? nodes_[node].parts.first : kNoNode; }
  /// kObject: what its attributes are set from, or kNoNode.
  PickleRef state(PickleRef node) const { return has_args(kind(node)) ? nodes_[node].parts.second : kNoNode; }
  /// kTuple, kList, kSet; kObject: what is appended or added to it.
  std::span<const PickleRef> items(PickleRef node) const;
  /// kDict, in the order of the stream; kObject: what is set by key. A key may come twice.
  std::span<const PicklePair> pairs(PickleRef node) const;

  /// Whether `node` is the global `module.name`.
  bool is_global(PickleRef node, std::string_view module, std::string_view name) const;
  /// Whether `node` is an object that the global `module.name` makes.
  bool is_object_of(PickleRef node, std::string_view module, std::string_view name) const;
  /// "module.name" of a global, or of the global that makes an object; else "".
  std::string class_name(PickleRef node) const;
  /// "a dict", "an object of argparse.Namespace": for messages, fit for a terminal.
  std::string describe(PickleRef node) const;

  /// Copies the texts, so that the stream may go.
  void take_texts();

  /// The classes, "module.name", sorted, of objects that stayed opaque because their class is not one that is known.
  const std::vector<std::string>& unknown_classes() const { return unknown_classes_; }

 private:
  friend class PickleMachine;

  /// Two numbers, by kind: an object's arguments and state; what names a persistent id; where a tuple's items begin in
  /// tuple_items_, and how many there are; a list's or set's place in lists_; where the pairs of a dict that was set at
  /// once begin in dict_pairs_, and how many there are; of another dict, its place in dicts_.
  struct Parts {
    std::uint32_t first = UINT32_MAX;
    std::uint32_t second = UINT32_MAX;
  };
  struct Node {
    PickleKind kind = PickleKind::kNone;
    bool is_filled = false;          // an object with items or pairs
    std::uint32_t number = kNoNode;  // of a text, its bytes; of an object its callee, or, if it is filled, its place in
                                     // filled_
    union {                          // a plan for a large model on many ranks has tens of millions of nodes
      Parts parts{};
      std::int64_t integer;  // of a global: index into globals_
      double real;
      const char* text;
    };
  };
  static_assert(sizeof(Node) == 16);
  struct Filled {
    PickleRef callee = kNoNode;
    std::uint32_t items = UINT32_MAX;  // index into lists_
    std::uint32_t pairs = UINT32_MAX;  // index into dicts_
  };

  static constexpr bool has_args(PickleKind kind) {
    return kind == PickleKind::kObject || kind == PickleKind::kPersistentId;
  }
  static constexpr bool has_text(PickleKind kind) {
    return kind == PickleKind::kString || kind == PickleKind::kBytes || kind == PickleKind::kBigInt;
  }

  PickleRef root_ = kNoNode;
  std::uint64_t size_bytes_ = 0;
  std::vector<Node> nodes_;
  std::vector<PickleRef> tuple_items_;
  std::vector<std::vector<PickleRef>> lists_;
  std::vector<PicklePair> dict_pairs_;
  std::vector<std::vector<PicklePair>> dicts_;
  std::vector<Filled> filled_;
  std::vector<PickleGlobal> globals_;
  std::unique_ptr<char[]> own_texts_;
  std::deque<std::string> decoded_;  // texts that had to be unescaped; their places stay when the Pickle moves
  std::vector<std::string> unknown_classes_;
};

/// The stream ends before its STOP; a caller who has only a part of it may try again with more.
class PickleCutOff : public Error {
 public:
  using Error::Error;
};

/// Reads the pickle at the start of `stream`, which may go on after it, and which must outlive the result (texts point
/// into it, until they are taken). `offset_bytes` is where the stream begins in the file, for errors. Room is made at
/// once for `expected_nodes`: where it grows instead, it takes twice the memory for a while.
/// \throws Error kBadInput for a damaged stream, and for one that runs code when Python loads it, naming what it runs;
///         kUnsupported for extension codes, out-of-band buffers and streams beyond the limits; PickleCutOff.
Pickle read_pickle(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes = 0,
                   std::size_t expected_nodes = 0);

}  // namespace reshard
