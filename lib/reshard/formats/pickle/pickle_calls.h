// Whether calls in a pickle are data, or would run code.
#pragma once

#include <cstddef>
#include <string>

#include "reshard/formats/pickle/pickle.h"
#include "reshard/formats/pickle/pickle_cursor.h"
#include "reshard/formats/pickle/pickle_globals.h"

namespace reshard {

inline constexpr std::size_t kMaxPickleNameBytes = 256;  // modules and globals: names are compared and copied

/// Validates a call of `callee`, and those that it makes itself. Returns the callee that is an unknown class, or kNoNode.
/// \throws PickleRefused; Error kBadInput for what no pickler writes. Errors are at the cursor's opcode.
PickleRef validate_call(const Pickle& pickle, const PickleCursor& cursor, PickleRef callee, PickleRef args,
                        PickleUse use);

/// Whether `node` was read by getattr: a class, whose attributes must not be changed.
bool is_read_by_getattr(const Pickle& pickle, PickleRef node);

/// The error for a pickle that runs code. `what` is what it does: "calls os.system".
PickleRefused refusal(const PickleCursor& cursor, const std::string& what);

}  // namespace reshard
