#pragma once

#include <optional>
#include <string_view>

#include "reshard/formats/pickle/pickle.h"

namespace reshard {

/// What it means when a pickle calls a global.
enum class PickleCall : std::uint8_t {
  kKnown,         // makes data, as torch's own checkpoints do
  kUnknownClass,  // makes an object of a class; the object is left aside
  kRunsCode,      // would run code in Python
};

/// Judges by the names alone. An unknown name that begins with a capital letter is a class and any other a function:
/// functions of modules that are not known are taken to run code, since that is how attacks are made.
PickleCall judge_call(const PickleGlobal& global);

/// Whether it is a class by its name, of a module that does not run code: what it has as attributes is data, as long as
/// nothing calls it.
bool is_inert_class(const PickleGlobal& global);

/// The position of the argument that a known global calls in its turn, if it does that.
std::optional<std::size_t> called_argument(const PickleGlobal& global);

/// The Python 3 name of a module that moved: `__builtin__` → `builtins`, `copy_reg` → `copyreg`.
std::string_view python3_module(std::string_view module);

}  // namespace reshard
