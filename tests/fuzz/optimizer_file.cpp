// Files of NxD's optimizer: an input is the pickle of one, or those of an xser container.

#include "reshard/layouts/optimizer/optimizer_file.h"

#include "fuzz/target.h"

void reshard::test::fuzz(std::string_view input) {
  MemoryFiles files;
  write_xser(files, input);
  const OptimizerFile file = read_optimizer_file(files, "c");
  const auto check_tensor = [&](const TensorEntry& tensor) {
    check(tensor.file < file.files.size());
    check_bounds(tensor, file.files[tensor.file].size_bytes);
  };
  std::size_t count = 0;
  for (const OptimizerFileGroup& group : file.groups) count += group.count;
  check(count == file.entries.size());
  for (const OptimizerEntry& entry : file.entries) {
    for (const OptimizerState& state : entry.tensors) check_tensor(state.shards.at(0));
    for (const TensorEntry& tensor : entry.master.shards) check_tensor(tensor);
  }
}
