#pragma once

#include "reshard/io/storage.h"

namespace reshard {

/// Where inputs are read, and where outputs are written. Borrows both.
class Stores {
 public:
  Stores(Files& sources, Storage& target) : sources_(&sources), target_(&target) {}
  /// Reads and writes in one place.
  Stores(Storage& both) : Stores(both, both) {}  // implicit

  Files& sources() const { return *sources_; }
  Storage& target() const { return *target_; }

 private:
  Files* sources_;
  Storage* target_;
};

}  // namespace reshard
