#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// How a pickle makes an object of a global.
enum class PickleUse : std::uint8_t {
  kBuilt,   // NEWOBJ without arguments: Python creates an object of a class and sets its attributes
  kCalled,  // REDUCE, INST, OBJ, and NEWOBJ with arguments, which classes written in C act on
};

/// What an object of a global is here.
enum class PickleVerdict : std::uint8_t {
  kKnown,     // data, as in torch's own checkpoints
  kRecorded,  // an object of an unknown class: it is in the tree and in Pickle::unknown_objects
  kRefused,   // would run code in Python
};

/// Judges a global by its name: modules that are known to run code are refused, and so are calls to unknown functions,
/// which attacks use. A name is a class if its first letter is a capital.
PickleVerdict judge(const PickleGlobal& global, PickleUse use);

/// Whether `global` is a class, by its name, of a module that does not run code. Its attributes are only data, as long
/// as nothing calls them.
bool is_inert_class(const PickleGlobal& global);

/// Whether `global` is a function of a module that runs code. Pickles of data do not even name one.
bool is_code(const PickleGlobal& global);

/// What a known global does with one of its arguments.
struct PickleCaller {
  PickleGlobal global;
  std::size_t argument;  // index of the one that it calls or builds
  PickleUse use;
  /// What the call gets: the items of the tuple with this index, the argument with this index, or nothing.
  enum class Gets : std::uint8_t { kTuple, kItem, kNothing } gets;
  std::size_t given = 0;
};

/// Returns what `global` calls or builds; null if it is no known global that does.
const PickleCaller* caller(const PickleGlobal& global);

/// Returns the Python 3 name of a renamed module: `__builtin__` → `builtins`, `copy_reg` → `copyreg`.
std::string_view python3_module(std::string_view module);

}  // namespace reshard
