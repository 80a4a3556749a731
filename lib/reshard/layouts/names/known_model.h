#pragma once

#include <memory>

#include "reshard/layouts/names/renames.h"
#include "reshard/specs/family/family.h"

namespace reshard {

/// What is known about the model of a checkpoint whose names are to be found. Borrows the family.
struct KnownModel {
  const Family* family = nullptr;        // the language model's family; null if unknown
  bool is_part = false;                  // the model has other tensors next to those of the family
  Rename rename{};                       // applied to the model's entries if it reveals the model (reveals_model)
  std::shared_ptr<const Json> config{};  // content of the language model's config.json; null if unknown

  KnownModel(const Family* known, bool part = false) : family(known), is_part(part) {}
};

}  // namespace reshard
