// Pickles (Python's Lib/pickletools.py, protocols 0 to 5) as trees of nodes. Imports and calls nothing: an object that
// Python would create by a call becomes a node that describes the call.
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

/// Longest supported stream: the pickle of two million tensors. A stream takes at most a few bytes of memory per byte,
/// in addition to its nodes, which have their own limit.
inline constexpr std::uint64_t kMaxPickleBytes = std::uint64_t{512} << 20;

using PickleRef = std::uint32_t;  // index of a node of a Pickle
inline constexpr PickleRef kNoNode = UINT32_MAX;

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // does not fit in 64 bits
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,        // a name that Python would import
  kObject,        // an object that Python would create by calling `callee` with `args`
  kPersistentId,  // an object outside the pickle, identified by `args`
};

struct PickleGlobal {
  std::string_view module;  // the name in Python 3
  std::string_view name;
};

using PicklePair = std::pair<PickleRef, PickleRef>;

/// The nodes of a pickle. Nodes may be shared, and a list, dict, set or object may contain itself: traversals must
/// remember visited nodes. Accessors of another kind than the node's return zero, "", kNoNode or an empty span.
class Pickle {
 public:
  PickleRef root() const { return root_; }
  std::uint32_t num_nodes() const { return static_cast<std::uint32_t>(nodes_.size()); }
  /// Size of the stream, from the first byte to STOP.
  std::uint64_t size_bytes() const { return size_bytes_; }

  PickleKind kind(PickleRef node) const { return nodes_[node].kind; }
  /// For kBool and kInt.
  std::int64_t integer(PickleRef node) const {
    const bool has = kind(node) == PickleKind::kBool || kind(node) == PickleKind::kInt;
    return has ? nodes_[node].integer : 0;
  }
  /// For kFloat.
  double real(PickleRef node) const { return kind(node) == PickleKind::kFloat ? nodes_[node].real : 0; }
  /// For kString: UTF-8, unless written by Python 2. For kBytes. For kBigInt: little-endian bytes, or decimal digits in
  /// protocol 0.
  std::string_view text(PickleRef node) const {
    const Node& it = nodes_[node];
    return has_text(it.kind) ? std::string_view(it.text, it.number) : std::string_view();
  }
  /// For kGlobal.
  PickleGlobal global(PickleRef node) const;
  /// For kObject: the global that is called.
  PickleRef callee(PickleRef node) const {
    const Node& it = nodes_[node];
    if (it.kind != PickleKind::kObject) return kNoNode;
    return it.is_filled ? filled_[it.number].callee : it.number;
  }
  /// For kObject: a tuple. For kPersistentId: any node.
  PickleRef args(PickleRef node) const { return has_args(kind(node)) ? nodes_[node].parts.first : kNoNode; }
  /// For kObject: the state that its attributes are set from, or kNoNode.
  PickleRef state(PickleRef node) const { return has_args(kind(node)) ? nodes_[node].parts.second : kNoNode; }
  /// For kTuple, kList and kSet. For kObject: the appended or added items.
  std::span<const PickleRef> items(PickleRef node) const;
  /// For kDict, in the order of the stream. For kObject: the items set by key. A key may occur twice.
  std::span<const PicklePair> pairs(PickleRef node) const;

  /// Whether `node` is the global `module.name`.
  bool is_global(PickleRef node, std::string_view module, std::string_view name) const;
  /// Whether `node` is an object created by the global `module.name`.
  bool is_object_of(PickleRef node, std::string_view module, std::string_view name) const;
  /// Returns "module.name" of a global or of its attribute, or of the one that creates an object; otherwise "".
  std::string class_name(PickleRef node) const;
  /// Describes a node for messages: "a dict", "an object of argparse.Namespace". Safe for terminals.
  std::string describe(PickleRef node) const;

  /// Copies the texts, so that the stream may be freed.
  void take_texts();

  /// An object of a class that read_pickle does not know.
  struct UnknownObject {
    PickleRef node;
    PickleRef of;  // its class, for class_name
  };
  std::span<const UnknownObject> unknown_objects() const { return unknown_objects_; }

 private:
  friend class PickleMachine;

  /// Two numbers that depend on the kind. Object: arguments and state. Persistent id: its argument. Tuple: start and
  /// number of its items in tuple_items_. List or set: index into lists_. Dict that is set at once: start and number of
  /// its pairs in dict_pairs_; other dict: index into dicts_.
  struct Parts {
    std::uint32_t first = UINT32_MAX;
    std::uint32_t second = UINT32_MAX;
  };
  struct Node {
    PickleKind kind = PickleKind::kNone;
    bool is_filled = false;          // an object with items or pairs
    std::uint32_t number = kNoNode;  // text: its size in bytes; object: its callee or, if filled, index into filled_
    union {                          // kept small: a plan for a large model on many ranks has tens of millions of nodes
      Parts parts{};
      std::int64_t integer;  // global: index into globals_
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
  std::deque<std::string> decoded_;  // unescaped texts; a deque, so that they do not move with the Pickle
  std::vector<UnknownObject> unknown_objects_;
};

/// The stream ends before its STOP. A caller that passed only a part may retry with more.
class PickleCutOff : public Error {
 public:
  using Error::Error;
};

/// The stream runs code when Python loads it.
class PickleRefused : public Error {
 public:
  explicit PickleRefused(Error error) : Error(std::move(error)) {}
};

/// Reads the pickle at the start of `stream`. The stream may be longer than the pickle, and must outlive the result
/// (texts point into it until take_texts). `offset_bytes` is the offset of the stream in the file, for errors.
/// `expected_nodes` reserves memory: growing would temporarily need twice as much.
/// \throws Error kBadInput for a damaged stream; PickleRefused, also kBadInput, naming the code; kUnsupported for extension codes, out-of-band buffers and streams beyond the limits; PickleCutOff.
Pickle read_pickle(std::string_view stream, const std::filesystem::path& path, std::uint64_t offset_bytes = 0,
                   std::size_t expected_nodes = 0);

}  // namespace reshard
