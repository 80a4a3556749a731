#pragma once

#include <optional>
#include <string_view>

#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// Effect of a call to a global in a pickle.
enum class PickleCall : std::uint8_t {
  kKnown,         // creates data, as in torch's own checkpoints
  kUnknownClass,  // creates an object of a class; the object is ignored
  kRunsCode,      // would run code in Python
};

/// Classifies a global by its name. An unknown name that begins with a capital letter is a class, any other a function.
/// Unknown functions are assumed to run code, since attacks use them.
PickleCall judge_call(const PickleGlobal& global);

/// Whether `global` is a class, by its name, of a module that does not run code. Its attributes are only data, as long
/// as nothing calls them.
bool is_inert_class(const PickleGlobal& global);

/// Index of the argument that a known global calls, if any.
std::optional<std::size_t> called_argument(const PickleGlobal& global);

/// Returns the Python 3 name of a renamed module: `__builtin__` → `builtins`, `copy_reg` → `copyreg`.
std::string_view python3_module(std::string_view module);

}  // namespace reshard
