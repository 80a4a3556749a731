#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::cli {

/// A name with a key. Only names with equal keys are folded together.
struct Foldable {
  std::string name;
  std::string key;
};

/// Names that differ only in numbers between dots, folded into one: "model.layers.{0..31}.mlp.down_proj.weight".
struct Folded {
  std::string name;
  std::vector<std::uint32_t> members;  // indices into the input, ascending
};

/// Replaces each number between dots by a star: "layers.*.attention.wq.weight".
std::string without_numbers(std::string_view name);

/// Formats ascending numbers, each with at least `digits` digits: "{00..03,07,10..16..2}". Ranges are in shell
/// notation, with the step unless it is 1. A single number has no braces.
std::string number_set(const std::vector<std::uint64_t>& numbers, int digits = 1);

/// Folds names that differ only in numbers. Every input is a member of exactly one result. Results are in the order of
/// their first members. Numbers that do not form a full grid give several results.
std::vector<Folded> fold(const std::vector<Foldable>& items);

}  // namespace reshard::cli
