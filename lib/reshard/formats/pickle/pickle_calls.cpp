#include "reshard/formats/pickle/pickle_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "reshard/base/strings.h"

namespace reshard {
namespace {

constexpr int kMostCallers = 4;  // nested calls; torch's have two
constexpr std::size_t kMostCallerArgs = 4;

/// Python 3.11.0 to 3.11.3 pickle a member of an enum as `getattr` of its class.
bool reads_inert_attribute(const Pickle& pickle, PickleRef callee, std::span<const PickleRef> items) {
  return pickle.is_global(callee, "builtins", "getattr") && items.size() == 2 &&
         pickle.kind(items[0]) == PickleKind::kGlobal && is_inert_class(pickle.global(items[0])) &&
         pickle.kind(items[1]) == PickleKind::kString && !pickle.text(items[1]).starts_with("_");
}

/// Protocols before 4 pickle a nested class as an attribute: ShardedTensor.ProcessGroupState.
PickleVerdict judge_nested(const Pickle& pickle, const PickleCursor& cursor, PickleRef callee, PickleUse use) {
  if (pickle.kind(callee) != PickleKind::kObject ||
      !reads_inert_attribute(pickle, pickle.callee(callee), pickle.items(pickle.args(callee))))
    throw cursor.bad("calls " + pickle.describe(callee));
  const auto items = pickle.items(pickle.args(callee));
  const PickleGlobal outer = pickle.global(items[0]);
  if (pickle.text(items[1]).size() > kMaxPickleNameBytes)
    throw cursor.bad(fmt::format("calls an attribute with a name of {} bytes", pickle.text(items[1]).size()));
  const std::string name = fmt::format("{}.{}", outer.name, pickle.text(items[1]));
  return judge({outer.module, name}, use);
}

/// Whether `node` is `object`, `dict` or another class of builtins that copyreg creates objects with.
bool is_plain_base(const Pickle& pickle, PickleRef node) {
  return pickle.kind(node) == PickleKind::kGlobal && pickle.global(node).module == "builtins" &&
         judge(pickle.global(node), PickleUse::kCalled) == PickleVerdict::kKnown;
}

PickleRefused refused(const Pickle& pickle, const PickleCursor& cursor, PickleRef callee) {
  return refusal(cursor, "calls " + printable(pickle.class_name(callee)));
}

}  // namespace

PickleRefused refusal(const PickleCursor& cursor, const std::string& what) {
  PickleRefused error(cursor.bad(what + ": loading this file in Python would run it"));
  error.hint(
      "no state dict needs this: do not load the file with torch.load(weights_only=False); ask its author for the "
      "state dict alone, or for safetensors");
  return error;
}

bool is_read_by_getattr(const Pickle& pickle, PickleRef node) {
  return pickle.kind(node) == PickleKind::kObject && pickle.is_global(pickle.callee(node), "builtins", "getattr");
}

PickleRef validate_call(const Pickle& pickle, const PickleCursor& cursor, PickleRef callee, PickleRef args,
                        PickleUse use) {
  const bool is_callable = pickle.kind(callee) == PickleKind::kGlobal || is_read_by_getattr(pickle, callee);
  if (is_callable && pickle.kind(args) != PickleKind::kTuple)
    throw cursor.bad("calls a function with " + pickle.describe(args) + " instead of arguments");
  std::span<const PickleRef> items = pickle.items(args);
  PickleRef unknown = kNoNode;
  for (int depth = 0; depth < kMostCallers; ++depth) {
    const bool is_global = pickle.kind(callee) == PickleKind::kGlobal;
    if (is_global && reads_inert_attribute(pickle, callee, items)) return unknown;
    if (use == PickleUse::kBuilt && !items.empty()) use = PickleUse::kCalled;
    const PickleVerdict verdict =
        is_global ? judge(pickle.global(callee), use) : judge_nested(pickle, cursor, callee, use);
    if (verdict == PickleVerdict::kRefused) throw refused(pickle, cursor, callee);
    if (verdict == PickleVerdict::kRecorded) unknown = callee;
    const PickleCaller* const calls = is_global ? caller(pickle.global(callee)) : nullptr;
    if (calls == nullptr || calls->argument >= items.size()) return unknown;
    if (items.size() > kMostCallerArgs)
      throw cursor.bad("calls " + pickle.class_name(callee) + " with too many arguments");
    if (pickle.is_global(callee, "copyreg", "_reconstructor") && items.size() > 1 && !is_plain_base(pickle, items[1]))
      throw refused(pickle, cursor, items[1]);  // its __new__ and __init__ are called
    const PickleKind kind = pickle.kind(items[calls->argument]);
    if (kind != PickleKind::kGlobal && kind != PickleKind::kObject) return unknown;  // text and numbers are not called
    callee = items[calls->argument];
    use = calls->use;
    const auto given = items.subspan(std::min(calls->given, items.size()));
    if (calls->gets == PickleCaller::Gets::kNothing || given.empty())
      items = {};
    else if (calls->gets == PickleCaller::Gets::kItem)
      items = given.first(1);
    else if (pickle.kind(given.front()) == PickleKind::kTuple)
      items = pickle.items(given.front());
    else
      throw cursor.bad("calls " + pickle.class_name(callee) + " with " + pickle.describe(given.front()));
  }
  throw cursor.bad("has calls nested more deeply than any pickler writes");
}

}  // namespace reshard
