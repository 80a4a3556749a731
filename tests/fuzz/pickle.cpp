// Pickles: every node must lead to nodes that are there.

#include "reshard/formats/pickle/pickle.h"

#include <cstdlib>

#include "fuzz/time_limit.h"

namespace reshard {
namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_nodes(const Pickle& pickle, std::size_t size) {
  const auto is_node = [&](PickleRef node) { return node < pickle.num_nodes(); };
  check(is_node(pickle.root()) && pickle.size_bytes() <= size && pickle.num_nodes() <= size);
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
    check(pickle.text(node).size() <= 2 * size);  // of Latin-1, as UTF-8
  }
}

}  // namespace
}  // namespace reshard

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  try {
    reshard::check_nodes(reshard::read_pickle({reinterpret_cast<const char*>(bytes), size}, "f"), size);
  } catch (const reshard::Error& error) {
    reshard::check(error.kind() == reshard::ErrorKind::kBadInput || error.kind() == reshard::ErrorKind::kUnsupported);
  }
  return 0;
}
