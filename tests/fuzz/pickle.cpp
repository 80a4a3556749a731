// Pickles: every node must lead to nodes that are there.

#include "reshard/formats/pickle/pickle.h"

#include "fuzz/target.h"

void reshard::test::fuzz(std::string_view input) {
  const Pickle pickle = read_pickle(input, "f");
  const auto is_node = [&](PickleRef node) { return node < pickle.num_nodes(); };
  check(is_node(pickle.root()) && pickle.size_bytes() <= input.size() && pickle.num_nodes() <= input.size());
  for (PickleRef node = 0; node < pickle.num_nodes(); ++node) {
    for (const PickleRef item : pickle.items(node)) check(is_node(item));
    for (const auto& [key, value] : pickle.pairs(node)) check(is_node(key) && is_node(value));
    if (pickle.kind(node) == PickleKind::kObject) {
      check(pickle.kind(pickle.callee(node)) == PickleKind::kGlobal);
      check(pickle.kind(pickle.args(node)) == PickleKind::kTuple);
      check(pickle.state(node) == kNoNode || is_node(pickle.state(node)));
    }
    if (pickle.kind(node) == PickleKind::kPersistentId) check(is_node(pickle.args(node)));
    check(!pickle.describe(node).empty());
    check(pickle.text(node).size() <= 2 * input.size());  // of Latin-1, as UTF-8
  }
}
