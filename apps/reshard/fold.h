#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::cli {

/// A name with a key: only names of one key are folded together.
struct Foldable {
  std::string name;
  std::string key;
};

/// Names that differ only in numbers between dots, as one: "model.layers.{0..31}.mlp.down_proj.weight".
struct Folded {
  std::string name;
  std::vector<std::uint32_t> members;  // indices into the input, ascending
};

/// A name with a star for each number between dots: "layers.*.attention.wq.weight".
std::string without_numbers(std::string_view name);

/// "{00..03,07,10..16..2}": ascending numbers, each of at least `digits` digits; ranges as shells write them, with
/// the step unless it is 1. One number is itself.
std::string number_set(const std::vector<std::uint64_t>& numbers, int digits = 1);

/// Folds names that differ only in numbers. Every input is a member of exactly one result; results have the order of
/// their first members. If the numbers do not form a full grid, there are several results.
std::vector<Folded> fold(const std::vector<Foldable>& items);

}  // namespace reshard::cli
