#pragma once

#include "reshard/base/error.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/layout_table.h"

namespace reshard::test {

/// The layout of that name, which there is.
inline const Layout* layout(std::string_view name) {
  const Layout* found = layout_named(name);
  if (found == nullptr) throw Error(ErrorKind::kInternal, "no layout " + std::string(name));
  return found;
}

}  // namespace reshard::test
